"""How long a request may be: its prompt, media and output tokens together, in the context that a worker holds."""

from __future__ import annotations

from dataclasses import dataclass

from has.gateway.errors import BadRequest
from has.gateway.job import Job

OPEN_ANSWER = 2
"""Tokens that an estimate leaves at least where the client sets no bound: an answer of one would be prefill's alone."""


@dataclass(frozen=True, slots=True)
class Context:
    """`most`: tokens of one request, None without bound."""

    most: int | None

    def check_text(self, job: Job, characters_per_token: int) -> None:
        """Raises BadRequest where the job's text is too long, however few tokens it may be. Reads none of it."""
        if self.most is None:
            return
        characters, most = job.characters, self.most * characters_per_token
        if characters > most:
            raise BadRequest(
                f"the text has {characters} characters; the context of {self.most} tokens holds at most {most}",
                "messages",
                code="context_length_exceeded",
            )

    def credible(self, job: Job, prompt_tokens: int, media_tokens: int = 0) -> int:
        """An estimate of `prompt_tokens`, as far as media and what the job asks for leave room for it.

        With more nothing would fit, and that is not for an estimate to say: who counts will.
        """
        if self.most is None:
            return prompt_tokens
        return max(0, min(prompt_tokens, self.most - media_tokens - (job.max_tokens or OPEN_ANSWER)))

    def output_tokens(self, job: Job, prompt_tokens: int) -> int:
        """What the job asks for; without a wish, what its prompt leaves (media are still to be counted).

        Raises BadRequest where that does not fit.
        """
        if self.most is None:
            if job.max_tokens is None:
                raise BadRequest("max_tokens is needed: this service has no bound of its own", "max_tokens")
            return job.max_tokens
        left = self.most - prompt_tokens
        if left < 1 or (job.max_tokens or 0) > left:
            raise self._too_long(prompt_tokens, job.max_tokens)
        return job.max_tokens or left

    def left_after_media(self, job: Job, tokens: int, output_tokens: int) -> int:
        """Of `output_tokens` those that fit, now that prompt and media are known to have `tokens`.

        Raises BadRequest where none do, or not all that the job asks for.
        """
        if self.most is None:
            return output_tokens
        left = self.most - tokens
        if left < 1:
            raise self._too_long(tokens, None)
        if job.max_tokens is not None and output_tokens > left:
            raise self._too_long(tokens, job.max_tokens)
        return min(output_tokens, left)

    def _too_long(self, tokens: int, max_tokens: int | None) -> BadRequest:
        wanted = f" and {max_tokens} output tokens are asked for" if max_tokens else ""
        return BadRequest(
            f"the prompt has {tokens} tokens{wanted}; the context holds {self.most}",
            "messages",
            code="context_length_exceeded",
        )
