// Package strictjson reads JSON (RFC 8259) from files and requests.
//
// It accepts only texts that every reader takes the same way. encoding/json
// accepts keys in any case, takes the last of duplicate keys, and turns
// invalid UTF-8 and unpaired surrogates into U+FFFD; a text can then mean one
// thing here and another to the program that wrote or forwarded it. This package
// refuses them: a key that occurs twice in an object, unpaired surrogates, invalid
// UTF-8, nesting beyond a limit that the caller sets, and text after the value.
// Numbers are read exactly or refused. Errors name the byte at which the text is
// wrong, or the path of the value.
//
// Three levels build on each other: a [Scanner] walks through a text in place,
// [Object] reads the members of an object by key and type, and [Unmarshal] checks
// a text before it leaves the rest to encoding/json. [Nesting] follows brackets
// in a text that arrives in pieces.
package strictjson
