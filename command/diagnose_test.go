package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDiagnose opens folders that people mistake for a checkpoint: the error says what
// each one is.
func TestDiagnose(t *testing.T) {
	const llama = `{"model_type":"llama","architectures":["LlamaForCausalLM"]`
	for _, c := range []struct {
		name  string
		files map[string]string // "->" precedes the target of a link
		code  int
		want  string
	}{
		{"gguf", map[string]string{"model-q4.gguf": "GGUF"}, exitFailed, "model-q4.gguf: 4 bytes, expected at least 24"},
		{"gguf beside a config", map[string]string{"config.json": llama + "}", "model-q4.gguf": "GGUF"}, exitRefused, "a folder with a GGUF file (model-q4.gguf)"},
		{"lora", map[string]string{"adapter_config.json": `{"base_model_name_or_path":"meta/x"}`, "adapter_model.safetensors": ""}, exitRefused, "an adapter (LoRA) for meta/x"},
		{"bin", map[string]string{"config.json": llama + "}", "pytorch_model.bin": ""}, exitRefused, "pickled weights alone (pytorch_model.bin)"},
		{"consolidated", map[string]string{"params.json": "{}", "consolidated.safetensors": ""}, exitRefused, "the layout of consolidated.safetensors"},
		{"meta", map[string]string{"params.json": "{}", "consolidated.00.pth": ""}, exitRefused, "the layout of consolidated.00.pth"},
		{"link", map[string]string{"config.json": llama + "}", "model.safetensors": "->../../blobs/0123"}, exitFailed, "model.safetensors is a broken link to ../../blobs/0123"},
		{"classifier", map[string]string{"config.json": `{"model_type":"qwen2","architectures":["Qwen2ForSequenceClassification"]}`, "model.safetensors": ""}, exitRefused, "a classifier (Qwen2ForSequenceClassification)"},
		{"embedder", map[string]string{"config.json": `{"model_type":"qwen2","architectures":["Qwen2Model"]}`, "model.safetensors": ""}, exitRefused, "a model of embeddings"},
		{"sentences", map[string]string{"config.json": `{"model_type":"bert"}`, "modules.json": "[]", "model.safetensors": ""}, exitRefused, "a model of embeddings"},
		{"gptq", map[string]string{"config.json": llama + `,"quantization_config":{"quant_method":"gptq","bits":4}}`, "model.safetensors": ""}, exitRefused, "quantised with gptq (4 bits)"},
		{"bitsandbytes", map[string]string{"config.json": llama + `,"quantization_config":{"quant_method":"bitsandbytes","load_in_8bit":true}}`, "model.safetensors": ""}, exitRefused, "quantised with bitsandbytes (8 bits)"},
		{"empty", nil, exitFailed, "the folder is empty"},
		{"something else", map[string]string{"notes.txt": ""}, exitFailed, "config.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(dir, name)
				if len(text) > 2 && text[:2] == "->" {
					require.NoError(t, os.Symlink(text[2:], path))
				} else {
					require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
				}
			}
			fails(t, c.code, c.want, "run", dir, "x")
			fails(t, c.code, c.want, "inspect", dir)
		})
	}
	file := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(file, []byte("GGUF"), 0o600))
	fails(t, exitFailed, "4 bytes, expected at least 24", "run", file, "x")
}
