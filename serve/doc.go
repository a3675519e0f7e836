// Package serve answers over HTTP in the protocols that existing clients speak: the
// OpenAI chat and text completions, with the vLLM extensions that evaluation tools
// and routers use, the OpenAI responses and the Anthropic messages. It computes
// nothing itself; it serves engines.
//
// # Main types
//
// A [Server] has models, loaded ([Server.Add]) or loaded when a request asks for them
// ([Server.AddOnDemand]), and a [Server.Handler]. Requests are read strictly: keys are
// exact and given once, null means absent, unknown fields are ignored, and an unsupported
// field that would change the answer is refused by name. Nothing is ever truncated
// silently: what does not fit is an error with the numbers.
//
// # Compression
//
// A request may have a context, a text before the first user message, or a document, a
// text stored earlier with POST /v1/documents. With kv_compression, a lukv.Policy as
// JSON, the text's cache is compressed before the question is known. Answers say what
// the cache holds, and GET /v1/documents/{id}/kept says which entries of a document every
// head has kept. The page at / shows all this.
//
// # Structured output and tools
//
// response_format (json_object, json_schema) and structured_outputs (json, regex,
// choice) are enforced token by token; what cannot be enforced in a schema is refused by
// name. tools are shown to the model by its template, in the syntax of Llama 3, Mistral,
// Qwen, Granite or Phi, or explained before the first user message if the template has none;
// calls and results that it leaves out of a conversation become text. If
// tool_choice is required or names a function, the answer is a call with arguments that
// follow the function's schema; with auto, text is free, and only a call can follow the
// mark of a call.
//
// # Reasoning
//
// If the template knows <think> and </think>, the text between them is separate from the
// answer: reasoning_content, or an item or block of its own. Formats apply to what
// follows.
//
// # Services with an engine of their own
//
// [StreamEvents] answers with server-sent events, and [Handler] answers errors, as the
// server does.
//
// # The promise
//
// An answer is a function of the request, the model and the seed; see package engine.
//
// # Limits
//
// Without [Server.OpenStore], documents are forgotten when the server ends. Embeddings are
// not supported.
package serve
