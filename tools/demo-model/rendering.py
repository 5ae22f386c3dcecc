"""Turns conversations into text with the chat template that is shipped with the tokenizer."""
import json
from pathlib import Path

import jinja2

TEMPLATE_PATH = Path(__file__).resolve().parent / "chat_template.jinja"
END_OF_TEXT = "<|endoftext|>"


class Renderer:
    """The chat template, set up as transformers sets it up."""

    def __init__(self):
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        # jinja's own tojson escapes HTML and sorts keys; chat templates expect neither.
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(TEMPLATE_PATH.read_text())

    def training_text(self, example: dict) -> str:
        """A conversation or plain text of the corpus, complete."""
        if "text" in example:
            return example["text"] + END_OF_TEXT
        return self._template.render(messages=example["messages"], tools=example["tools"])

    def prompt(
        self, messages: list[dict], tools: list[dict] | None = None, think: bool = False
    ) -> str:
        """The messages so far, up to where the assistant begins to write."""
        return self._template.render(
            messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=think
        )
