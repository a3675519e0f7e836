// Package tokenizer turns text into the token ids of a checkpoint and back.
//
// It reads the three files in which Llama, Mistral and Qwen2 checkpoints carry
// their vocabulary: tokenizer.json (byte pair encoding, byte-level or with byte
// fallback), SentencePiece tokenizer.model (byte pair encoding) and tekken.json.
// [Open] finds the right one in a checkpoint folder together with the
// special-token files next to it; [Load] does the same in an [io/fs.FS];
// [OpenFile] and [LoadFile] read one given vocabulary file. Features that are
// not implemented exactly are refused with an error that names them: the package
// never returns approximate ids.
//
// The main types are [Tokenizer] and [StreamDecoder], which turns ids into text
// one at a time and never returns part of a character.
//
// # Lifetime and concurrency
//
// A Tokenizer is immutable once it is loaded and safe for concurrent use by any
// number of goroutines; scratch memory comes from a pool. Nothing needs
// closing. A StreamDecoder belongs to one goroutine.
//
// # Special tokens
//
// Special and added tokens that occur in the text become their ids, unless
// [EncodeOptions.SpecialAsText] is set. [EncodeOptions.AddSpecial] adds the
// tokens that the checkpoint puts around a text (for most, BOS at the start). A
// rendered chat prompt already holds its BOS, so encode it without AddSpecial.
//
// # Limits
//
// Character classes are those of Unicode 16, as in the reference implementations;
// the normal forms follow golang.org/x/text. Model types other than byte pair
// encoding, and parts of tokenizer.json that cannot be read exactly, are refused with an
// error that wraps [errors.ErrUnsupported]. Pre-tokenizers are ByteLevel, Split, Digits,
// Punctuation and Metaspace; ByteLevel may be followed only by Digits, and by a Split that
// looks only at visible ASCII characters. A pattern means what it means to Oniguruma: inner
// brackets add their characters, && intersects, and a{1,3}+ repeats a group. In tekken.json,
// which is not read by Oniguruma, these three are refused.
//
// Encoding takes O(n log n) time in the length of the text for every vocabulary and
// text; no time limit can change ids. Split and Replace patterns are
// matched in linear time, those of published tokenizers by dedicated scanners;
// patterns that cannot be matched this way (back-references, lookbehind of more than
// one character, atomic groups of more than a repeated character, repetition of
// something that may be empty) are refused by name when the file is read. Text that
// is not valid UTF-8 is encoded byte by byte if the vocabulary has tokens for bytes;
// only a SentencePiece vocabulary replaces each invalid byte with U+FFFD, as its own
// library does.
package tokenizer
