package command

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/model"
)

// explain replaces an error from opening a checkpoint folder with a description of the folder
// instead, if its files show that.
func explain(dir string, err error) error {
	if err == nil {
		return nil
	}
	what, refused := diagnose(dir)
	switch {
	case what == "":
		return err
	case refused:
		return fmt.Errorf("model %s: %s is %w", dir, what, model.ErrUnsupported)
	}
	return fmt.Errorf("model %s: %s", dir, what)
}

// diagnose says what a folder that cannot be opened holds, "" if its files do not
// tell, and whether that is unsupported rather than broken.
func diagnose(dir string) (what string, refused bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", false
	}
	var files []string
	for _, e := range entries {
		name := e.Name()
		if e.Type()&fs.ModeSymlink != 0 {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				to, _ := os.Readlink(filepath.Join(dir, name))
				return fmt.Sprintf("%s is a broken link to %s (fetch the file again, or copy the targets of links)", name, to), false
			}
		}
		files = append(files, name)
	}
	first := func(patterns ...string) string {
		for _, name := range files {
			if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, name); return ok }) {
				return name
			}
		}
		return ""
	}
	config := readConfig(filepath.Join(dir, "config.json"))
	weights := first("model*.safetensors")
	switch {
	case first("adapter_config.json") != "" && weights == "":
		base := readConfig(filepath.Join(dir, "adapter_config.json")).Base
		if base != "" {
			base = " for " + base
		}
		return "an adapter (LoRA)" + base + ", which has to be merged into its base model first,", true
	case config.quantised() != "":
		return "a model quantised with " + config.quantised() + ", where plain float weights are expected,", true
	case config.is("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel"):
		return "a classifier (" + config.Architectures[0] + "), which continues no text,", true
	case first("modules.json", "config_sentence_transformers.json", "1_Pooling") != "", len(config.Architectures) == 1 && config.is("Model"):
		return "a model of embeddings, which continues no text,", true
	case weights != "":
		return "", false
	case first("*.gguf") != "":
		return "a folder with a GGUF file (" + first("*.gguf") + "), whose own path is expected,", true
	case first("consolidated*") != "":
		return "the layout of " + first("consolidated*") + ", where model.safetensors is expected (Hugging Face's layout),", true
	case first("*.bin", "*.pt", "*.pth", "*.ckpt") != "":
		return "a folder with pickled weights alone (" + first("*.bin", "*.pt", "*.pth", "*.ckpt") + "), where model.safetensors is expected,", true
	case len(files) == 0:
		return "the folder is empty", false
	}
	return "", false
}

// foreignConfig holds the fields that tell kinds of configs apart.
type foreignConfig struct {
	Architectures []string `json:"architectures"`
	Base          string   `json:"base_model_name_or_path"`
	Quantisation  *struct {
		Method string `json:"quant_method"`
		Bits   int    `json:"bits"`
		Four   bool   `json:"load_in_4bit"`
		Eight  bool   `json:"load_in_8bit"`
	} `json:"quantization_config"`
	Compression any `json:"compression_config"`
}

func readConfig(path string) (c foreignConfig) {
	if data, err := inputfile.Read(path, 1<<20); err == nil {
		_ = json.Unmarshal(data, &c) // an unreadable config tells nothing
	}
	return c
}

// is reports whether the first architecture ends in one of the words.
func (c foreignConfig) is(endings ...string) bool {
	return len(c.Architectures) > 0 && slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(c.Architectures[0], e) })
}

// quantised returns the method's name, "" if there is none.
func (c foreignConfig) quantised() string {
	q := c.Quantisation
	switch {
	case q == nil && c.Compression != nil:
		return "compressed-tensors"
	case q == nil:
		return ""
	}
	method := q.Method
	if method == "" {
		method = "an unnamed method"
	}
	switch {
	case q.Bits > 0:
		method += fmt.Sprintf(" (%d bits)", q.Bits)
	case q.Four:
		method += " (4 bits)"
	case q.Eight:
		method += " (8 bits)"
	}
	return method
}
