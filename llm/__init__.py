"""The diffusion language model: models, engine, HTTP API. Imports `kernels` and nothing above."""
