// Package dialog goes from messages to tokens and back, between people who
// write and a model that continues a sequence of numbers. The command and
// the servers share it.
//
//   - [Framing] is the text around a context and a question, by a checkpoint's
//     chat template ([ChatFraming]) or without one ([PlainFraming]).
//   - [Format] is how whole conversations are written: by the template, or as
//     plain lines.
//   - [Conversation] talks turn by turn on a session of its own: every turn
//     feeds only the tokens after the longest prefix that the session holds, and a
//     document at the start is compressed before any question is known. It can
//     be saved and resumed.
//   - [Answer] turns an answer's tokens into text as they come, up to the first
//     stop text. It never returns part of a stop text or of a character.
//
// # Lifetime and concurrency
//
// Framings and formats are immutable and safe for concurrent use. A
// Conversation owns its session, must be closed, and belongs to one goroutine
// at a time, as an Answer does.
//
// # Control tokens
//
// What users, tools and documents write is never read as a control token: if a
// message contains <|im_end|>, the model gets the letters. Only templates and
// framings write control tokens. [Format.Tokens] is the one call from messages to
// tokens, [Framing.Prompt] the one for a context and a question.
package dialog
