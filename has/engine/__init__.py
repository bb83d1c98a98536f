"""Engines beyond the bundled runtime: what vLLM, SGLang, Dynamo and llm-d can express, artefacts for them, vLLM driven live."""
