// Package chat renders the chat templates that checkpoints carry: Jinja
// templates that turn a conversation, tools and special tokens into the one
// string a model was trained to read.
//
// # Main types
//
//   - [Template] is a parsed template; [Parse] makes one from source, [Load]
//     from a checkpoint folder.
//   - [Object] is a JSON object that keeps its key order. Messages, tools and
//     tool arguments are Objects.
//   - [Input] is a conversation with everything around it; [Template.Render]
//     turns it into a [Prompt], [Template.Split] cuts that after one user
//     message.
//   - [Limits] bounds what rendering a template may use.
//
// # Control tokens
//
// A prompt is one string in which the template's words, such as <|im_end|>, and
// the words of users, tools and documents stand side by side. A [Prompt] tells
// them apart, whatever the template does with a message (trim, split, replace,
// JSON): [Prompt.Data] lists the parts that came with the conversation.
// [Prompt.Encode] recognises control tokens only in the rest, so a message
// cannot end its own turn. Numbers, truth values and the roles of the chat APIs
// count as the template's, and so does whatever a template chooses by looking
// at a message.
//
// # Lifetime and concurrency
//
// A Template is immutable and safe for concurrent use. Render reads its input and
// never changes or keeps it; the caller must not change it meanwhile. An Object
// is a plain value for one goroutine, or for many readers.
//
// # Safety
//
// Templates and conversations are untrusted input. A template reaches only the
// values it is given and pure functions on them: no files, no network, no
// methods of Go types, no changes to its input. Steps, memory, nesting and
// ranges are bounded by [Limits], and a context can cancel rendering. Every
// failure is an [Error] with the template's name and a position; [ErrLimit],
// [ErrUnsupported] and [RaisedError] tell the causes apart for callers that
// care. A folder's files are read only if they are regular files of bounded
// size.
//
// # Limits of the language
//
// Templates are written in the subset of Jinja2 that published ones use, as the
// transformers library sets it up; anything outside it is refused by name,
// where possible when a template is parsed.
package chat
