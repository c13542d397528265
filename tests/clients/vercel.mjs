// The Vercel AI SDK: node vercel.mjs BASE_URL MODEL
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "sinkahead",
  baseURL,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: provider(name), temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

const whole = await generateText({ ...asked, prompt: "hi" });
assert.equal(whole.finishReason, "length");
assert.equal(whole.usage.outputTokens, 24);
const stream = streamText({ ...asked, prompt: "hi" });
let text = "";
for await (const part of stream.textStream) text += part;
assert.equal(text, whole.text);
console.log("ok: text, whole and streamed");

const schema = z.object({ kind: z.enum(["a", "b"]), on: z.boolean() });
const { object } = await generateObject({ ...asked, maxOutputTokens: 200, schema, prompt: "hi" });
assert.ok(["a", "b"].includes(object.kind));
console.log("ok: an object");

const weather = tool({ description: "The weather", inputSchema: z.object({ unit: z.enum(["C", "F"]) }) });
const called = await generateText({
  ...asked,
  maxOutputTokens: 200,
  prompt: "hi",
  tools: { weather },
  toolChoice: "required",
});
assert.equal(called.finishReason, "tool-calls");
assert.ok(["C", "F"].includes(called.toolCalls[0].input.unit));
console.log("ok: a tool");
