// Package checkpoint describes the model in a GGUF file as the text files of a published
// checkpoint do: config.json, generation_config.json, tokenizer.json and
// tokenizer_config.json, made from the file's metadata. Whatever reads a checkpoint folder
// can then read the file: its configuration, its tokenizer with the chat template, and its
// sampling defaults. Weights are not touched.
//
// Anything that is not understood exactly, such as an architecture, a vocabulary or a
// scaling of positions, is refused by name.
package checkpoint
