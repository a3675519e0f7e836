// Package serve answers over HTTP in the forms that existing clients speak: the
// OpenAI chat and text completions, with the extensions of vLLM that evaluation tools
// and routers use, the OpenAI responses and the Anthropic messages. It computes
// nothing; what it serves are engines.
//
// # Main types
//
// A [Server] has models, loaded ([Server.Add]) or to be loaded when somebody asks for
// them ([Server.AddOnDemand]), and a [Server.Handler]. Requests are read strictly: keys are exact and given once, null means absent, unknown fields are
// ignored, and a field that would change the answer and is not supported is refused by
// name. Nothing is ever cut silently: what does not fit is an error with the numbers.
//
// # Compression
//
// With context, a text in front of the first message of a user, or document, a text
// put in before with POST /v1/documents, and kv_compression, a lukv.Policy as JSON, the
// text's cache is compressed before the question is known. Answers say what the cache
// holds, and GET /v1/documents/{id}/kept which entries every head has kept of a
// document. At / is a page that shows all this to people.
//
// # Structured output and tools
//
// response_format (json_object, json_schema) and structured_outputs (json, regex,
// choice) are enforced token by token; what cannot be enforced in a schema is refused by
// name. tools are shown to the model as its template does, in the syntax of Llama 3,
// Mistral or Qwen, or are explained in front of the first message of a user where the
// template knows none. With tool_choice required or a function's name the answer is a
// call with arguments of the function's schema; with auto text is free, and what comes
// behind the mark of a call can only be one.
//
// # Thoughts
//
// Where the template knows <think> and </think>, what stands between them is apart from
// the answer: reasoning_content, an item or a block of its own. Formats hold for what
// comes behind.
//
// # The promise
//
// An answer is a function of the request, the model and the seed; see package engine.
//
// # Limits
//
// Without [Server.OpenStore] documents are forgotten when the server ends. No embeddings.
package serve
