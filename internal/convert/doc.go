// Package convert makes a model folder, laid out like a published checkpoint,
// from a GGUF file: config, generation defaults, tokenizer with its chat
// template, and weights as safetensors.
//
// [GGUF] streams tensor by tensor and needs memory for only some rows. The folder
// appears under its name when it is complete and has been opened once. Until then
// it lies beside that, with .partial after its name, and a stopped conversion
// resumes there with the missing shards.
//
// Architectures: llama (which includes Mistral), qwen2, qwen3. Query and key rows,
// which llama files permute, are put back in order. Anything not understood
// exactly is refused by name.
package convert
