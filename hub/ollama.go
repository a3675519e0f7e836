package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/inputfile"
)

const (
	// OllamaPrefix begins the names of models that ollama keeps.
	OllamaPrefix = "ollama:"

	ollamaHost, ollamaNamespace, ollamaTag = "registry.ollama.ai", "library", "latest"

	maxManifest  = 1 << 20                            // bytes
	ollamaLayers = "application/vnd.ollama.image."    // followed by the kind of layer
	serviceStore = "/usr/share/ollama/.ollama/models" // of the Linux service
)

// FindOllama returns the GGUF file of a model that ollama has pulled, given its name as
// ollama has it: [HOST/][NAMESPACE/]MODEL[:TAG]. The store is OLLAMA_MODELS, else
// .ollama/models in the home folder, else that of the Linux service. It is only read. A
// model that is not there gives ErrNotCached; one that is not a GGUF file of its own is
// an error that says why.
func FindOllama(name string) (string, error) {
	root, err := ollamaStore()
	if err != nil {
		return "", fmt.Errorf("find %s%s: %w", OllamaPrefix, name, err)
	}
	file, err := findOllama(root, name)
	if err != nil {
		return "", fmt.Errorf("find %s%s in %s: %w", OllamaPrefix, name, root, err)
	}
	return file, nil
}

func ollamaStore() (string, error) {
	if dir, err := expand(os.Getenv("OLLAMA_MODELS")); dir != "" || err != nil {
		return dir, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home folder (set OLLAMA_MODELS): %w", err)
	}
	dir := filepath.Join(home, ".ollama", "models")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, err := os.Stat(serviceStore); err == nil {
		return serviceStore, nil
	}
	return dir, nil
}

// parseOllama returns host, namespace, model and tag of a name.
func parseOllama(name string) ([]string, error) {
	rest, tag := name, ollamaTag
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		rest, tag = name[:i], name[i+1:]
	}
	parts := strings.Split(rest, "/")
	switch len(parts) {
	case 1:
		parts = append([]string{ollamaHost, ollamaNamespace}, parts...)
	case 2:
		parts = append([]string{ollamaHost}, parts...)
	case 3:
	default:
		return nil, fmt.Errorf("the name has %d parts, expected [HOST/][NAMESPACE/]MODEL[:TAG]", len(parts))
	}
	parts = append(parts, tag)
	for i, p := range parts {
		ok := p != "" && len(p) <= 350 && strings.Trim(p, ".") != ""
		for _, r := range p {
			ok = ok && ('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r) || i == 0 && r == ':')
		}
		if !ok {
			return nil, fmt.Errorf("the name has the part %.80q, expected letters, digits, '-', '_' and '.'", p)
		}
	}
	return parts, nil
}

func findOllama(root, name string) (string, error) {
	parts, err := parseOllama(name)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "manifests")
	for i, part := range parts {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		at := slices.IndexFunc(entries, func(e fs.DirEntry) bool { return strings.EqualFold(e.Name(), part) })
		if at < 0 {
			return "", fmt.Errorf("found no %s %q: %w%s", []string{"host", "namespace", "model", "tag"}[i], part, ErrNotCached, among(entries))
		}
		dir = filepath.Join(dir, entries[at].Name())
	}
	text, err := inputfile.Read(dir, maxManifest)
	if err != nil {
		return "", err
	}
	file, err := readManifest(root, text)
	if err != nil {
		return "", fmt.Errorf("manifest %s: %w", dir, err)
	}
	return file, nil
}

// among lists what there is, for messages.
func among(entries []fs.DirEntry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if names == nil {
		return ""
	}
	return " (found " + strings.Join(names, ", ") + ")"
}

// ollamaBlob is a part of a model.
type ollamaBlob struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// path returns the file of the blob, which must be there with its size.
func (b ollamaBlob) path(root string) (string, error) {
	hash, ok := strings.CutPrefix(b.Digest, "sha256:")
	if !ok || !isHex(hash, 64) {
		return "", fmt.Errorf("found the digest %.80q, expected sha256: and 64 hexadecimal digits", b.Digest)
	}
	file := filepath.Join(root, "blobs", "sha256-"+hash)
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() != b.Size {
		return "", fmt.Errorf("%s: found %d bytes, expected a file of %d", file, info.Size(), b.Size)
	}
	return file, nil
}

// readManifest returns the file of the model that a manifest lists.
func readManifest(root string, text []byte) (string, error) {
	var m struct {
		Config ollamaBlob   `json:"config"`
		Layers []ollamaBlob `json:"layers"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return "", err
	}
	if err := checkOllamaConfig(root, m.Config); err != nil {
		return "", err
	}
	var model *ollamaBlob
	for i, l := range m.Layers {
		switch kind, _ := strings.CutPrefix(l.MediaType, ollamaLayers); kind {
		case "model":
			if model != nil {
				return "", errors.New("found several files of weights, expected one GGUF file")
			}
			model = &m.Layers[i]
		case "tensor":
			return "", errors.New("found weights as single tensors (MLX), which are not supported, expected one GGUF file")
		case "adapter":
			return "", errors.New("found an adapter, which is not supported, expected one GGUF file")
		}
	}
	if model == nil {
		return "", errors.New("found no weights, expected one GGUF file")
	}
	return model.path(root)
}

// checkOllamaConfig refuses models that have no weights here or of another format.
func checkOllamaConfig(root string, blob ollamaBlob) error {
	file, err := blob.path(root)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	text, err := inputfile.Read(file, maxManifest)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	var c struct {
		Format string `json:"model_format"`
		Remote string `json:"remote_host"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("config %s: %w", file, err)
	}
	switch {
	case c.Remote != "":
		return fmt.Errorf("the model runs on %.80q and has no weights here", c.Remote)
	case c.Format != "" && c.Format != "gguf":
		return fmt.Errorf("found weights of the format %.80q, which is not supported, expected gguf", c.Format)
	}
	return nil
}
