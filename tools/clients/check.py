"""The official Python clients against a running server.

    python tools/clients/check.py http://127.0.0.1:8080

Needs `openai` and `anthropic` (requirements.txt). The server must serve models/demo: it knows what
the answers are. Prints one line for each thing that was checked; the first that is wrong ends it.
"""

import json
import sys

import anthropic
import openai
import pydantic

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SUM = [{"role": "user", "content": "What is 7 plus 5?"}]
STORY = [{"role": "user", "content": "Write a story about a robot who loves music."}]
GREEDY = {"model": "any", "temperature": 0}
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
BOTH = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
RESULT = '{"condition": "sunny", "temperature": 21}'
ABOUT = "Get the current weather for a city."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The name of the city."}},
    "required": ["city"],
}


class Sum(pydantic.BaseModel):
    value: int
    certain: bool


def prompt_tokens(message):
    """What was computed, and what an earlier prompt left."""
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


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
    expect("openai: streamed usage", chunks[-1].usage.total_tokens == whole.usage.total_tokens)
    expect("openai: a prompt is taken in once", chunks[-1].usage.prompt_tokens_details.cached_tokens > 0)

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

    wild = {"model": "any", "temperature": 1.5, "seed": 5, "max_tokens": 300}
    parsed = chat.parse(messages=SUM, response_format=Sum, **wild, **plain)
    expect("openai: parsed", isinstance(parsed.choices[0].message.parsed, Sum))
    brief = {"extra_body": {"thinking_budget": 20}}
    with chat.stream(messages=SUM, response_format=Sum, **wild, **brief) as stream:
        final = stream.get_final_completion()
    expect("openai: parsed while it streams, after thinking", isinstance(final.choices[0].message.parsed, Sum))
    choice = chat.create(messages=SUM, extra_body={"structured_outputs": {"choice": ["12", "twelve"]}}, **wild)
    expect("openai: a choice", choice.choices[0].message.content in ("12", "twelve"))
    schema = {"name": "x", "schema": {"type": "wizard"}}
    wizard = {"type": "json_schema", "json_schema": schema}
    error = refused(openai.BadRequestError, lambda: chat.create(messages=SUM, response_format=wizard, **wild))
    expect("openai: a bad schema", error is not None and "wizard" in error.message)

    error = refused(openai.BadRequestError, lambda: chat.create(messages=FRANCE, model="any", max_tokens=-1))
    expect("openai: a bad request", error is not None and error.param == "max_tokens")
    expect("openai: nothing there", refused(openai.NotFoundError, lambda: client.embeddings.create(model="any", input="x")))

    raw = client.completions.create(prompt="Once upon a time", max_tokens=8, **GREEDY)
    expect("openai: completions", raw.choices[0].text and raw.usage.completion_tokens == 8)
    both = client.completions.create(prompt=["The fox", "Once upon a time"], max_tokens=8, **GREEDY)
    expect("openai: completions of two", [c.index for c in both.choices] == [0, 1] and both.choices[1].text == raw.choices[0].text)
    expect("openai: models", len(list(client.models.list())) == 1 and client.models.retrieve("a-name").id == "a-name")


def check_openai_tools(url):
    chat = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0).chat.completions
    function = {"name": "get_weather", "description": ABOUT, "parameters": SCHEMA}
    ask = {"tools": [{"type": "function", "function": function}], **GREEDY}

    whole = chat.create(messages=WEATHER, **ask)
    choice = whole.choices[0]
    call = choice.message.tool_calls[0]
    expect("openai: a call", choice.finish_reason == "tool_calls" and call.type == "function" and call.function.name == "get_weather")
    expect("openai: its arguments", json.loads(call.function.arguments) == {"city": "Paris"})
    with chat.stream(messages=WEATHER, **ask) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    streamed = final.message.tool_calls[0]
    expect("openai: a streamed call", "tool_calls.function.arguments.delta" in events and final.finish_reason == "tool_calls")
    expect("openai: is the same", streamed.function.arguments == call.function.arguments and streamed.id != call.id)

    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    history = [*WEATHER, choice.message.model_dump(exclude_none=True), result]
    answer = chat.create(messages=history, **ask)
    expect("openai: the round trip", "sunny in Paris" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop")
    with chat.stream(messages=history, **ask) as stream:
        final = stream.get_final_completion().choices[0]
    expect("openai: the round trip, streamed", final.message.content == answer.choices[0].message.content)

    both = chat.create(messages=BOTH, extra_body={"enable_thinking": False}, **ask).choices[0].message.tool_calls
    expect("openai: two calls", [json.loads(c.function.arguments)["city"] for c in both] == ["Paris", "Rome"] and both[0].id != both[1].id)
    one = chat.create(messages=BOTH, parallel_tool_calls=False, **ask).choices[0].message.tool_calls
    expect("openai: one call", len(one) == 1)
    for asked in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        forced = chat.create(messages=FRANCE, tool_choice=asked, **ask).choices[0]
        expect("openai: a call on demand", forced.message.tool_calls[0].function.name == "get_weather")
    none = chat.create(messages=WEATHER, tool_choice="none", **ask).choices[0]
    expect("openai: no call", not none.message.tool_calls and none.finish_reason == "stop")
    cut = chat.create(messages=WEATHER, max_completion_tokens=18, extra_body={"enable_thinking": False}, **ask).choices[0]
    expect("openai: a call that is cut", cut.finish_reason == "length" and not cut.message.tool_calls and "get_weather" in cut.message.content)

    bad = [{"type": "function", "function": {"name": "a b"}}]
    error = refused(openai.BadRequestError, lambda: chat.create(messages=WEATHER, model="any", tools=bad))
    expect("openai: a bad tool", error is not None and error.param == "tools[0].function.name")
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    error = refused(openai.BadRequestError, lambda: chat.create(messages=image, model="any"))
    expect("openai: an image", error is not None and "images" in error.message)


def check_responses(url):
    responses = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0).responses
    plain = {"reasoning": {"effort": "none"}}

    whole = responses.create(input="What is the capital of France?", **GREEDY, **plain)
    expect("responses: an answer", "Paris" in whole.output_text and whole.status == "completed")
    expect("responses: usage", whole.usage.total_tokens > 20 and whole.usage.output_tokens > 3)
    with responses.stream(input=FRANCE, **GREEDY, **plain) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    expect("responses: streamed is whole", text == whole.output_text == final.output_text)
    expect("responses: streamed usage", final.usage.total_tokens == whole.usage.total_tokens)
    raw = [event.type for event in responses.create(input=FRANCE, stream=True, **GREEDY, **plain)]
    expect("responses: events", raw[:2] == ["response.created", "response.in_progress"] and raw[-1] == "response.completed")

    thought = responses.create(input=SUM, **GREEDY)
    expect("responses: reasoning apart", [item.type for item in thought.output] == ["reasoning", "message"] and thought.output[0].content[0].text)
    cut = responses.create(input=STORY, max_output_tokens=5, **GREEDY, **plain)
    expect("responses: a limit", cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens")

    wild = {"model": "any", "temperature": 1.5, "max_output_tokens": 300, "extra_body": {"seed": 5}}
    parsed = responses.parse(input=SUM, text_format=Sum, **wild, **plain)
    expect("responses: parsed", isinstance(parsed.output_parsed, Sum))
    with responses.stream(input=SUM, text_format=Sum, **wild, **plain) as stream:
        final = stream.get_final_response()
    expect("responses: parsed while it streams", isinstance(final.output_parsed, Sum))

    with responses.stream(input=STORY, **GREEDY) as stream:
        next(iter(stream))
    again = responses.create(input=FRANCE, **GREEDY, **plain)
    expect("responses: a stream that is left", again.output_text == text)

    for kept in [{"store": True}, {"previous_response_id": "resp_1"}, {"background": True}]:
        error = refused(openai.BadRequestError, lambda kept=kept: responses.create(input="hi", model="any", **kept))
        expect("responses: nothing is kept", error is not None and error.param == next(iter(kept)))


def check_responses_tools(url):
    responses = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0).responses
    tool = {"type": "function", "name": "get_weather", "description": ABOUT, "parameters": SCHEMA, "strict": False}
    ask = {"tools": [tool], "store": False, **GREEDY}

    whole = responses.create(input=WEATHER, **ask)
    call = whole.output[-1]
    expect("responses: a call", call.type == "function_call" and call.name == "get_weather" and json.loads(call.arguments) == {"city": "Paris"})
    with responses.stream(input=WEATHER, **ask) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    expect("responses: a streamed call", "response.function_call_arguments.delta" in events and final.output[-1].arguments == call.arguments)

    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    history = [*WEATHER, *whole.output, result]
    answer = responses.create(input=history, **ask)
    expect("responses: the round trip", "sunny in Paris" in answer.output_text)
    with responses.stream(input=history, **ask) as stream:
        text = stream.get_final_response().output_text
    expect("responses: the round trip, streamed", text == answer.output_text)

    both = [item for item in responses.create(input=BOTH, **ask).output if item.type == "function_call"]
    expect("responses: two calls", [json.loads(item.arguments)["city"] for item in both] == ["Paris", "Rome"])
    for asked in ["required", {"type": "function", "name": "get_weather"}]:
        forced = responses.create(input=FRANCE, tool_choice=asked, **ask).output
        expect("responses: a call on demand", forced[0].type == "function_call" and forced[0].name == "get_weather")
    none = responses.create(input=WEATHER, tool_choice="none", **ask).output
    expect("responses: no call", all(item.type != "function_call" for item in none))


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

    parsed = client.messages.parse(messages=SUM, output_format=Sum, **ask)
    expect("anthropic: parsed", isinstance(parsed.parsed_output, Sum))

    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model="any", messages=FRANCE, system=system)
    answered = client.messages.create(messages=FRANCE, system=system, **ask)
    expect("anthropic: counted tokens", counted.input_tokens == prompt_tokens(answered))

    with client.messages.stream(messages=STORY, **ask) as stream:
        next(iter(stream.text_stream))
    expect("anthropic: a stream that is left", client.messages.create(messages=FRANCE, **ask).content[0].text == text)

    error = refused(anthropic.BadRequestError, lambda: client.messages.create(model="any", max_tokens=-1, messages=FRANCE))
    expect("anthropic: a bad request", error is not None and "max_tokens" in error.message)
    expect("anthropic: models", [model.id for model in client.models.list()] != [])


def check_anthropic_tools(url):
    messages = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0).messages
    tools = [{"name": "get_weather", "description": ABOUT, "input_schema": SCHEMA}]
    ask = {"model": "any", "max_tokens": 300, "tools": tools, "extra_body": {"temperature": 0}}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

    whole = messages.create(messages=WEATHER, **thinking, **ask)
    expect("anthropic: a call", whole.stop_reason == "tool_use" and [block.type for block in whole.content] == ["thinking", "tool_use"])
    call = whole.content[1]
    expect("anthropic: its input", call.name == "get_weather" and call.input == {"city": "Paris"})
    with messages.stream(messages=WEATHER, **thinking, **ask) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    expect("anthropic: a streamed call", "input_json" in events and final.stop_reason == "tool_use")
    expect("anthropic: is the same", final.content[1].input == call.input and final.content[0].thinking == whole.content[0].thinking)

    content = [{"type": "text", "text": RESULT}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    history = [*WEATHER, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    answer = messages.create(messages=history, **thinking, **ask)
    expect("anthropic: the round trip", "sunny in Paris" in answer.content[-1].text and answer.stop_reason == "end_turn")
    with messages.stream(messages=history, **thinking, **ask) as stream:
        text = stream.get_final_message().content[-1].text
    expect("anthropic: the round trip, streamed", text == answer.content[-1].text)
    counted = messages.count_tokens(model="any", messages=history, tools=tools, **thinking)
    expect("anthropic: counted with tools", counted.input_tokens == prompt_tokens(answer))

    both = messages.create(messages=BOTH, **ask)
    expect("anthropic: two calls", [block.input["city"] for block in both.content if block.type == "tool_use"] == ["Paris", "Rome"])
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": RESULT} for block in both.content if block.type == "tool_use"]
    results[1].update(is_error=True, content="timed out")
    history = [*BOTH, {"role": "assistant", "content": both.content}, {"role": "user", "content": results}]
    expect("anthropic: two results, one an error", messages.create(messages=history, **ask).stop_reason in ("end_turn", "tool_use"))
    one = messages.create(messages=BOTH, tool_choice={"type": "auto", "disable_parallel_tool_use": True}, **ask)
    expect("anthropic: one call", [block.type for block in one.content].count("tool_use") == 1)
    for asked in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
        forced = messages.create(messages=FRANCE, tool_choice=asked, **ask)
        expect("anthropic: a call on demand", forced.stop_reason == "tool_use")
    none = messages.create(messages=WEATHER, tool_choice={"type": "none"}, **ask)
    expect("anthropic: no call", none.stop_reason == "end_turn" and all(block.type != "tool_use" for block in none.content))

    of_servers = [{"type": "web_search_20250305", "name": "web_search"}]
    without = messages.create(model="any", max_tokens=1, messages=WEATHER, tools=of_servers)
    expect("anthropic: a tool of the original's servers is left out", without.stop_reason == "max_tokens")
    described = [{"type": "bash_20250124", "name": "bash"}]
    error = refused(anthropic.BadRequestError, lambda: messages.create(model="any", max_tokens=1, messages=WEATHER, tools=described))
    expect("anthropic: a tool that only the original describes", error is not None and "tools[0]" in error.message)


if __name__ == "__main__":
    check_openai(sys.argv[1])
    check_openai_tools(sys.argv[1])
    check_responses(sys.argv[1])
    check_responses_tools(sys.argv[1])
    check_anthropic(sys.argv[1])
    check_anthropic_tools(sys.argv[1])
