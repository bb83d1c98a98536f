"""Planning and the gateway use names, token rules, text, media and sampling without torch."""

from __future__ import annotations

import subprocess
import sys


def test_the_light_modules_do_not_load_torch() -> None:
    code = (
        "import sys\n"
        "import has.models.names, has.models.tokens, has.models.text, has.models.sampling\n"
        "has.models.tokens.media_tokens('tiny-image', image_px=(300, 200))\n"
        "from has.models.media import decode_media\n"
        "from has.models.synthetic import synthetic_media\n"
        "assert 'PIL' not in sys.modules and 'av' not in sys.modules and 'soundfile' not in sys.modules\n"
        "for kind, model in [('image', 'tiny-image'), ('video', 'tiny-video'), ('audio', 'tiny-audio')]:\n"
        "    decode_media(kind, synthetic_media(kind, model, 0), model)\n"
        "heavy = {'torch', 'transformers', 'numba', 'pandas', 'optuna'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
