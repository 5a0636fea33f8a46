"""ember-135m: adapters over SmolLM2-135M-Instruct, the template they expect, and a model card."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
