// Package convert makes a model folder, as published checkpoints are laid out,
// of a GGUF file: config, generation defaults, tokenizer with its chat template,
// and weights as safetensors.
//
// [GGUF] streams tensor by tensor; it needs the memory of some rows. The folder
// appears under its name when it is complete and has been opened once; until then
// it lies beside it, with .partial behind its name, and a conversion that was
// stopped goes on there with the shards that are missing.
//
// Architectures: llama (which carries Mistral, too), qwen2, qwen3. Rows of queries
// and keys, which llama files have permuted, are put back. What is not understood
// exactly is refused by name.
package convert
