// Package tokenizer turns text into the token ids of a checkpoint and back.
//
// It reads the three files in which Llama, Mistral and Qwen2 checkpoints carry
// their vocabulary: tokenizer.json (byte pair encoding, byte-level or with byte
// fallback), SentencePiece tokenizer.model (byte pair encoding) and tekken.json.
// [Open] finds the right one in a checkpoint folder together with the
// special-token files next to it; [Load] does the same in an [io/fs.FS];
// [OpenFile] and [LoadFile] read one given vocabulary file. Features that are
// not implemented exactly are refused with an error that names them: the package
// never gives approximate ids.
//
// The main types are [Tokenizer] and [StreamDecoder], which turns ids into text
// one at a time and never gives out part of a character.
//
// # Lifetime and concurrency
//
// A Tokenizer is immutable once it is loaded and safe for concurrent use by any
// number of goroutines; scratch memory comes from a pool. Nothing has to be
// closed. A StreamDecoder belongs to one goroutine.
//
// # Special tokens
//
// Special and added tokens that occur in the text become their ids, unless
// [EncodeOptions.SpecialAsText] is set. [EncodeOptions.AddSpecial] adds what the
// checkpoint puts around a text (for most, BOS at the start). A rendered chat
// prompt already holds its BOS and is encoded without AddSpecial.
//
// # Limits
//
// Character classes are those of Unicode 16, as in the reference implementations;
// the normal forms follow golang.org/x/text. Model types other than byte pair
// encoding, and parts of tokenizer.json that no Llama, Mistral or Qwen2 checkpoint
// uses, are refused with an error that wraps [errors.ErrUnsupported].
//
// Time is O(n log n) in the length of the text for every vocabulary and text; there
// is no time limit that could change ids. Split and Replace patterns are matched in
// linear time, those of published tokenizers by scanners of their own; what cannot be
// matched this way (back-references, lookbehind at more than one character, atomic
// groups of more than a repeated character, a repetition of what may be empty) is
// refused by name when the file is read. Text that is not valid UTF-8 is encoded byte
// by byte where the vocabulary has bytes; only a SentencePiece vocabulary replaces
// each invalid byte with U+FFFD, as its own library does.
package tokenizer
