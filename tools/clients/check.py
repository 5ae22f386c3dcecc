"""The official Python clients against a running server.

    python tools/clients/check.py http://127.0.0.1:8080

Needs `openai` and `anthropic` (requirements.txt). The server must serve models/demo: it knows what
the answers are. Prints one line for each thing that was checked; the first that is wrong ends it.
"""

import sys

import anthropic
import openai

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SUM = [{"role": "user", "content": "What is 7 plus 5?"}]
STORY = [{"role": "user", "content": "Write a story about a robot who loves music."}]
GREEDY = {"model": "any", "temperature": 0}


def expect(what, truth):
    print(("ok   " if truth else "WRONG ") + what, flush=True)
    if not truth:
        sys.exit(1)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


def check_openai(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    chat = client.chat.completions
    plain = {"extra_body": {"enable_thinking": False}}

    whole = chat.create(messages=FRANCE, **GREEDY, **plain)
    expect("openai: an answer", "Paris" in whole.choices[0].message.content)
    expect("openai: its end and usage", whole.choices[0].finish_reason == "stop" and whole.usage.total_tokens > 20)

    options = {"include_usage": True}
    chunks = list(chat.create(messages=FRANCE, stream=True, stream_options=options, **GREEDY, **plain))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    expect("openai: streamed is whole", text == whole.choices[0].message.content)
    expect("openai: streamed usage", chunks[-1].usage == whole.usage)

    with chat.stream(messages=FRANCE, **GREEDY, **plain) as stream:
        final = stream.get_final_completion()
    expect("openai: the stream helper", final.choices[0].message.content == text)

    thought = chat.create(messages=SUM, **GREEDY)
    expect("openai: reasoning apart", thought.choices[0].message.reasoning_content and thought.usage.completion_tokens_details.reasoning_tokens > 0)

    odds = chat.create(messages=FRANCE, logprobs=True, top_logprobs=2, max_completion_tokens=3, **GREEDY, **plain)
    content = odds.choices[0].logprobs.content
    expect("openai: logprobs", len(content) == 3 and all(len(c.top_logprobs) == 2 and c.logprob <= 0 for c in content))

    many = chat.create(model="any", messages=STORY, n=2, seed=5, max_tokens=20, stop=["zzz"], **plain)
    expect("openai: choices", len(many.choices) == 2 and many.choices[0].message.content != many.choices[1].message.content)

    stream = chat.create(messages=STORY, stream=True, model="any")
    next(iter(stream))
    stream.close()
    expect("openai: a stream that is left", chat.create(messages=FRANCE, **GREEDY, **plain).choices[0].message.content == text)

    error = refused(openai.BadRequestError, lambda: chat.create(messages=FRANCE, model="any", max_tokens=-1))
    expect("openai: a bad request", error is not None and error.param == "max_tokens")
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    expect("openai: tools are refused", refused(openai.BadRequestError, lambda: chat.create(messages=FRANCE, model="any", tools=[tool])))
    expect("openai: nothing there", refused(openai.NotFoundError, lambda: client.embeddings.create(model="any", input="x")))

    raw = client.completions.create(prompt="Once upon a time", max_tokens=8, **GREEDY)
    expect("openai: completions", raw.choices[0].text and raw.usage.completion_tokens == 8)
    expect("openai: models", len(list(client.models.list())) == 1 and client.models.retrieve("a-name").id == "a-name")


def check_anthropic(url):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    # The client has no temperature any more; the interface has.
    ask = {"model": "any", "max_tokens": 200, "extra_body": {"temperature": 0}}

    whole = client.messages.create(messages=FRANCE, **ask)
    expect("anthropic: an answer", whole.content[0].type == "text" and "Paris" in whole.content[0].text)
    expect("anthropic: its end and usage", whole.stop_reason == "end_turn" and whole.usage.output_tokens > 3)

    with client.messages.stream(messages=FRANCE, **ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect("anthropic: streamed is whole", text == whole.content[0].text and final.content[0].text == text)
    expect("anthropic: streamed usage", final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == "end_turn")

    thinking = {"type": "enabled", "budget_tokens": 1024}
    thought = client.messages.create(messages=SUM, thinking=thinking, **ask)
    expect("anthropic: thinking apart", [block.type for block in thought.content] == ["thinking", "text"])
    with client.messages.stream(messages=SUM, thinking=thinking, **ask) as stream:
        final = stream.get_final_message()
    expect("anthropic: streamed thinking", [block.type for block in final.content] == ["thinking", "text"] and final.content[0].thinking == thought.content[0].thinking)

    stop = whole.content[0].text[4:9]
    stopped = client.messages.create(messages=FRANCE, stop_sequences=[stop], **ask)
    expect("anthropic: a stop sequence", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop)

    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model="any", messages=FRANCE, system=system)
    answered = client.messages.create(messages=FRANCE, system=system, **ask)
    expect("anthropic: counted tokens", counted.input_tokens == answered.usage.input_tokens)

    with client.messages.stream(messages=STORY, **ask) as stream:
        next(iter(stream.text_stream))
    expect("anthropic: a stream that is left", client.messages.create(messages=FRANCE, **ask).content[0].text == text)

    error = refused(anthropic.BadRequestError, lambda: client.messages.create(model="any", max_tokens=-1, messages=FRANCE))
    expect("anthropic: a bad request", error is not None and "max_tokens" in error.message)
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    expect("anthropic: tools are refused", refused(anthropic.BadRequestError, lambda: client.messages.create(messages=FRANCE, tools=tools, **ask)))
    expect("anthropic: models", [model.id for model in client.models.list()] != [])


if __name__ == "__main__":
    check_openai(sys.argv[1])
    check_anthropic(sys.argv[1])
