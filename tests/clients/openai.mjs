// OpenAI's Node SDK against a server with only its base URL changed: node openai.mjs BASE_URL MODEL
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const asked = { model, messages, temperature: 0, max_tokens: 24 };

const checks = {
  async models() {
    const listed = await client.models.list();
    assert.ok(listed.data.some((one) => one.id === model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async "a chat, whole and streamed"() {
    const whole = await client.chat.completions.create(asked);
    assert.equal(whole.choices[0].finish_reason, "length");
    assert.equal(whole.usage.completion_tokens, 24);
    let text = "";
    let usage = null;
    const stream = await client.chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, 24);
    const gathered = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.equal(gathered.choices[0].message.content, text);
  },

  async "logprobs, choices and seeds"() {
    const sampled = { ...asked, temperature: 1, seed: 5, n: 2, logprobs: true, top_logprobs: 2 };
    const [first, second] = [await client.chat.completions.create(sampled), await client.chat.completions.create(sampled)];
    assert.equal(first.choices.length, 2);
    assert.deepEqual(first.choices.map((one) => one.message), second.choices.map((one) => one.message));
    assert.equal(first.choices[0].logprobs.content[0].top_logprobs.length, 2);
  },

  async "a completion, whole and streamed"() {
    const prompt = { model, prompt: "Once upon", temperature: 0, max_tokens: 8, logprobs: 1, echo: true };
    const whole = await client.completions.create(prompt);
    assert.ok(whole.choices[0].text.startsWith("Once upon"));
    let text = "";
    for await (const chunk of await client.completions.create({ ...prompt, stream: true })) {
      text += chunk.choices[0].text;
    }
    assert.equal(text, whole.choices[0].text);
  },

  async "a structured answer"() {
    const Point = z.object({ name: z.enum(["a", "b"]), on: z.boolean() });
    const format = zodResponseFormat(Point, "point");
    const parsed = await client.chat.completions.parse({ ...asked, max_tokens: 200, response_format: format });
    assert.ok(["a", "b"].includes(parsed.choices[0].message.parsed.name));
  },

  async "a tool, streamed"() {
    const parameters = {
      type: "object",
      properties: { unit: { type: "string", enum: ["C", "F"] } },
      required: ["unit"],
      additionalProperties: false,
    };
    const tools = [{ type: "function", function: { name: "weather", parameters, strict: true } }];
    const runner = client.chat.completions.stream({ ...asked, max_tokens: 200, tools, tool_choice: "required" });
    const { choices } = await runner.finalChatCompletion();
    assert.equal(choices[0].finish_reason, "tool_calls");
    const [call] = choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.ok(["C", "F"].includes(JSON.parse(call.function.arguments).unit));
    const result = { role: "tool", tool_call_id: call.id, content: "20" };
    const after = await client.chat.completions.create({
      ...asked,
      tools,
      messages: [...messages, choices[0].message, result],
    });
    assert.equal(after.session.matched, "extend");
  },

  async "a response, whole, streamed and gone on with"() {
    const first = await client.responses.create({ model, input: "hi", temperature: 0, max_output_tokens: 16 });
    assert.equal(first.status, "incomplete");
    const stream = client.responses.stream({
      model,
      input: "more",
      temperature: 0,
      max_output_tokens: 16,
      previous_response_id: first.id,
    });
    let text = "";
    for await (const event of stream) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    const second = await stream.finalResponse();
    assert.equal(second.output_text, text);
    assert.ok(second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens);
    const Point = z.object({ on: z.boolean() });
    const format = zodTextFormat(Point, "point");
    const parsed = await client.responses.parse({ model, input: "hi", max_output_tokens: 200, text: { format } });
    assert.equal(typeof parsed.output_parsed.on, "boolean");
  },

  async "errors by their kind"() {
    await assert.rejects(client.chat.completions.create({ ...asked, temperature: 9 }), OpenAI.BadRequestError);
    await assert.rejects(client.chat.completions.create({ ...asked, model: "other" }), OpenAI.NotFoundError);
    await assert.rejects(
      client.chat.completions.create({ ...asked, stream: true, no_such: 1 }),
      (error) => error instanceof OpenAI.BadRequestError && error.param === "no_such",
    );
  },

  async "an abort ends the stream, and the next request works"() {
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 4000, stream: true });
    let chunks = 0;
    for await (const _ of stream) {
      if (++chunks === 3) stream.controller.abort();
    }
    assert.ok(chunks < 100);
    assert.equal((await client.chat.completions.create(asked)).usage.completion_tokens, 24);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok: ${name}`);
}
