package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/testgz"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// family is a checkpoint put together from a tiny model's config, a tokenizer and
// a published chat template.
type family struct {
	name      string
	config    string // folder of model/testdata/models
	tokenizer string // folder of the tokenizers
	file      string // the vocabulary file in it, perhaps compressed
	template  string // folder of the chat templates, or the template itself
	real      bool   // uses a published tokenizer or template that is not in this repository
	prompt    string // of the conversation below, with the test's BOS and EOS
}

const (
	llama31Prompt = "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>" +
		"<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>" +
		"<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
	llama3Prompt = "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>" +
		"<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
	mistralPrompt = "<s> [INST] Hi [/INST] Yes </s> [INST] Why? [/INST]"
	nemoPrompt    = "<s>[INST]Hi[/INST]Yes</s>[INST]Why?[/INST]"
	qwenPrompt    = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n" +
		"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
	zephyrPrompt = "<|user|>\nHi</s>\n<|assistant|>\nYes</s>\n<|user|>\nWhy?</s>\n<|assistant|>\n"
)

// llama3Template is a template of our own that lays out prompts as Llama 3's does.
const llama3Template = `{{ bos_token }}{% for m in messages -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>{{ "\n\n" }}{{ m.content | trim }}<|eot_id|>
{%- endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ "\n\n" }}{% endif %}`

var families = []family{
	{"llama-2", "llama2-mha-f16-sharded", "mini/llama2-style", "tokenizer.json", "zephyr-tinyllama", false, zephyrPrompt},
	{"llama-3", "llama31-gqa-bf16", "mini/llama3-style", "tokenizer.json", llama3Template, false, llama3Prompt},
	{"mistral", "mistral-swa16-bf16", "mini/spm-noprefix", "tokenizer.model", "mistral-7b-instruct-v0.3", false, mistralPrompt},
	{"mistral-nemo", "mistral-nemo-f32", "mini/tekken-v7", "tekken.json", "mistral-nemo-instruct-2407", false, nemoPrompt},
	{"qwen2", "qwen2-tied-bf16", "mini/digits-bytelevel", "tokenizer.json", "qwen2.5-7b-instruct", false, qwenPrompt},
	{"real-llama-3.1", "llama31-gqa-bf16", "mini/llama3-style", "tokenizer.json", "llama-3.1-8b-instruct", true, llama31Prompt},
	{"real-mistral-v3", "mistral-swa16-bf16", "mistral-v3", "tokenizer.model", "mistral-7b-instruct-v0.3", true, mistralPrompt},
	{"real-mistral-nemo", "mistral-nemo-f32", "mistral-nemo", "tokenizer.json", "mistral-nemo-instruct-2407", true, nemoPrompt},
	{"real-qwen2.5", "qwen2-tied-bf16", "qwen2.5", "tokenizer.json", "qwen2.5-7b-instruct", true, qwenPrompt},
}

// build writes the checkpoint into dir.
func (f family) build(t *testing.T, dir string) {
	t.Helper()
	find := func(variable, fallback, name string) string {
		if own := filepath.Join(fallback, filepath.FromSlash(name)); !f.real {
			return own
		} else if _, err := os.Stat(own); err == nil {
			return own
		}
		path := filepath.Join(os.Getenv(variable), filepath.FromSlash(name))
		if _, err := os.Stat(path); err != nil || os.Getenv(variable) == "" {
			t.Skipf("published files: set %s to a folder that has %s", variable, name)
		}
		return path
	}
	source := find("LUKV_GOLDEN_TOKENIZERS", filepath.Join("..", "tokenizer", "testdata"), "models/"+f.tokenizer)
	template := []byte(f.template)
	if !strings.Contains(f.template, "{") {
		path := find("LUKV_GOLDEN_TEMPLATES", filepath.Join("..", "tokenizer", "chat", "testdata"), "real/"+f.template)
		var err error
		template, err = os.ReadFile(filepath.Join(path, "template.jinja"))
		require.NoError(t, err)
	}
	write := func(name string, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	data, err := testgz.ReadFile(filepath.Join(source, f.file))
	require.NoError(t, err)
	write(f.file, data)
	// The published layout: special tokens in tokenizer_config.json, the template
	// beside it.
	special := make(map[string]any)
	if data, err := os.ReadFile(filepath.Join(source, "tokenizer_config.json")); err == nil {
		require.NoError(t, json.Unmarshal(data, &special))
	}
	delete(special, "chat_template")
	special["bos_token"], special["eos_token"] = "<s>", "</s>"
	data, err = json.Marshal(special)
	require.NoError(t, err)
	write("tokenizer_config.json", data)
	write("chat_template.jinja", template)

	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join("..", "model", "testdata", "models", f.config, "config.json"))
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(text, &config))
	config["vocab_size"] = tok.VocabSize()
	config["bos_token_id"], config["eos_token_id"], config["pad_token_id"] = 0, []int{1, 2}, nil
	data, err = json.Marshal(config)
	require.NoError(t, err)
	write("config.json", data)
	write("generation_config.json", []byte(`{"eos_token_id": [3, 4], "do_sample": true, "temperature": 0.7, "top_p": 0.9}`))

	cfg, err := arch.Load(dir)
	require.NoError(t, err)
	var tensors []safetensors.Named
	w, err := weights.Random(t.Context(), cfg, tensor.BF16, 7)
	require.NoError(t, err)
	w.Each(func(name string, x tensor.Tensor) {
		tensors = append(tensors, safetensors.Named{Name: name, Tensor: x})
	})
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), tensors, map[string]string{"format": "pt"}))
}

// TestFamilies opens a whole folder of each family by path and by its name in the
// hub's cache, and chats with its own template.
func TestFamilies(t *testing.T) {
	const commit = "89abcdef0123456789abcdef0123456789abcdef"
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	document := filepath.Join(cache, "document.txt")
	require.NoError(t, os.WriteFile(document, []byte(strings.Repeat("Some words stand in a row. ", 20)), 0o600))
	messages := `[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yes"},{"role":"user","content":"Why?"}]`
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			repo := filepath.Join(cache, "models--test--"+f.name)
			dir := filepath.Join(repo, "snapshots", commit)
			require.NoError(t, os.MkdirAll(dir, 0o700))
			require.NoError(t, os.MkdirAll(filepath.Join(repo, "refs"), 0o700))
			f.build(t, dir)
			require.NoError(t, os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(commit), 0o600))

			name := "test/" + f.name
			code, out, msg := invoke(t, messages, "template", name, "--messages", "-", "--vars", `{"date_string":"26 Jul 2024"}`, "--json")
			require.Equal(t, exitOK, code, msg)
			var got struct {
				Prompt string
				Tokens []int32
			}
			unmarshal(t, out, &got)
			assert.Equal(t, f.prompt, got.Prompt)
			if !strings.HasPrefix(f.tokenizer, "mini") {
				assert.Less(t, len(got.Tokens), 40, "the markers are tokens, not text")
			}
			var answers []string
			for _, m := range []string{name + "@" + commit, dir} {
				code, out, msg := invoke(t, "How are you?\nWell?", "chat", m, "--max-tokens", "12", "--seed", "5", "--stats")
				require.Equal(t, exitOK, code, msg)
				answers = append(answers, out)
				var read, held, n int
				_, err := fmt.Sscanf(msg, "read %d of %d tokens in", &read, &held)
				require.NoError(t, err, msg)
				_, err = fmt.Sscanf(msg[strings.Index(msg, "answered"):], "answered %d", &n)
				require.NoError(t, err, msg)
				assert.Equal(t, held, read)
				assert.Greater(t, read, 5)
				assert.LessOrEqual(t, n, 12)
			}
			for _, a := range answers {
				assert.Equal(t, answers[0], a)
			}
			code, _, msg = invoke(t, "And?", "chat", name, "--max-tokens", "5", "--load", document, "--ratio", "0.5")
			assert.Equal(t, exitOK, code, msg)
			if !f.real {
				converse(t, dir)
			}
		})
	}
}

// converse checks that turns that read only what is new give the same answers as turns
// that read everything, even where sliding windows or a new tokenisation of the answer
// make the session go back.
func converse(t *testing.T, dir string) {
	t.Helper()
	m, err := model.Open(t.Context(), dir, model.WithThreads(1))
	require.NoError(t, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	format, err := dialog.NewFormat(m, dialog.FixedDate)
	require.NoError(t, err)
	length := 8
	sampling, err := (&samplingFlags{MaxTokens: &length, Seed: 3}).sampling(m)
	require.NoError(t, err)
	quiet := func(string) error { return nil }
	c := dialog.NewConversation(m, format)
	defer c.Close()
	c.Sampling = sampling
	for i, question := range []string{"Who are you?", "Where do you live?", "Why?"} {
		messages := c.Messages
		_, err := c.Ask(t.Context(), question, quiet)
		require.NoError(t, err)
		prompt, err := c.Prompt(t.Context(), c.Messages[:2*i+1])
		require.NoError(t, err)
		want := prompt.Encode(tok)
		assert.Equal(t, want, c.Held().Tokens()[:len(want)], "turn %d", i)
		answer, _ := c.Messages[2*i+1].Get("content")

		fresh := dialog.NewConversation(m, format)
		fresh.Sampling, fresh.Messages = sampling, messages
		_, err = fresh.Ask(t.Context(), question, quiet)
		require.NoError(t, err)
		same, _ := fresh.Messages[2*i+1].Get("content")
		assert.Equal(t, same, answer, "turn %d", i)
		fresh.Close()
	}
}
