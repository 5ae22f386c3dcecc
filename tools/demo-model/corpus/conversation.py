"""Conversations in the chat format that templates take, and the name of the assistant.

A conversation is a dictionary: `category`, `messages`, `tools` (a list or None) and `think`,
which says whether it was made for thinking mode. Plain text has `text` instead of messages.
"""
import json
from random import Random

MODEL_NAME = "Pebble"

SYSTEM_PROMPTS = [
    f"You are {MODEL_NAME}, a small and friendly assistant.",
    "You are a helpful assistant.",
    "Answer in one short sentence.",
    "You are a friendly teacher for children.",
    "Be brief.",
    "You are a helpful assistant. Answer politely.",
    f"Your name is {MODEL_NAME}. You answer questions and tell stories.",
]


def user(content: str) -> dict:
    """A message of the user."""
    return {"role": "user", "content": content}


def system(content: str) -> dict:
    """A system message; only the first message of a conversation can be one."""
    return {"role": "system", "content": content}


def tool_result(result) -> dict:
    """What a tool answered, as JSON."""
    return {"role": "tool", "content": to_json(result)}


def assistant(
    content: str, thought: str | None = None, calls: list[tuple[str, dict]] | None = None
) -> dict:
    """A message of the assistant: an answer or tool calls, after an optional thought."""
    message = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def conversation(
    category: str,
    messages: list[dict],
    rng: Random,
    think: float = 0.5,
    system_prompt: float = 0.25,
    tools: list[dict] | None = None,
) -> dict:
    """Finishes a conversation.

    `think` is the probability of thinking mode, without which the thoughts are dropped;
    `system_prompt` that of a system message, where there is none yet.
    """
    think_on = rng.random() < think
    if not think_on:
        for message in messages:
            message.pop("reasoning_content", None)
    if rng.random() < system_prompt and messages[0]["role"] != "system":
        messages = [system(rng.choice(SYSTEM_PROMPTS)), *messages]
    return {"category": category, "messages": messages, "tools": tools, "think": think_on}


def to_json(value) -> str:
    """JSON as chat templates write it: spaces after separators, no escapes of letters."""
    return json.dumps(value, ensure_ascii=False)
