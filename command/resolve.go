package command

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

// resolveModel finds the checkpoint that a command line calls name, a folder or a GGUF
// file: at that path, in the hub's cache, or among what ollama has pulled. It does not use
// the network.
func resolveModel(name string) (path string, err error) {
	if rest, ok := strings.CutPrefix(name, hub.OllamaPrefix); ok {
		return hub.FindOllama(rest)
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return findInFolder(name)
	case model.IsGGUF(name):
		return name, nil
	case err == nil:
		return "", fmt.Errorf("model %s: found a file, expected a checkpoint folder, a GGUF file, a hub name or %s", name, builtin.Name)
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("model %s: %w", name, errors.Unwrap(err))
	}
	if _, err := hub.ParseRef(name); err != nil {
		return "", fmt.Errorf("model %s: no such folder, and not a hub name (expected a checkpoint folder, a GGUF file, OWNER/NAME[@REVISION][:TAG], %sNAME[:TAG] or %s)", name, hub.OllamaPrefix, builtin.Name)
	}
	path, err = hub.Find(name)
	if errors.Is(err, hub.ErrNotCached) {
		return "", fmt.Errorf("model %s: no such folder; %w: lukv pull %s", name, err, name)
	}
	return path, err
}

// modelPath is resolveModel for commands that need files and so cannot take the embedded model.
func modelPath(name string) (string, error) {
	if _, err := os.Stat(name); err != nil && name == builtin.Name {
		return "", usage("%s is inside the program and not in files: expected a model of files", name)
	}
	return resolveModel(name)
}

// findInFolder returns the GGUF file in a folder that another program, such as LM Studio,
// keeps for one model, and the folder itself if it is a checkpoint.
func findInFolder(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
		return dir, nil
	}
	file, err := hub.FolderGGUF(dir, "")
	if err != nil {
		return "", fmt.Errorf("model %s: %w", dir, err)
	}
	return cmp.Or(file, dir), nil
}

// modelFiles returns the files of the checkpoint that a command line calls name.
func modelFiles(name string) (fs.FS, error) {
	if name == builtin.Name {
		return builtin.Files(), nil
	}
	dir, err := resolveModel(name)
	if err != nil {
		return nil, err
	}
	return model.Files(dir)
}

// openTokenizer returns the tokenizer of a checkpoint, or of a vocabulary file.
func openTokenizer(name string) (*tokenizer.Tokenizer, error) {
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && !model.IsGGUF(name) {
		return tokenizer.OpenFile(name)
	}
	files, err := modelFiles(name)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(files)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	return tok, nil
}
