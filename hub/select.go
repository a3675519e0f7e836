package hub

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

const (
	singleWeights = "model.safetensors"
	weightsIndex  = "model.safetensors.index.json"
	maxIndex      = 100_000_000 // bytes
)

// needed are the files of a checkpoint, besides the weights, that this module or
// its users' other tools read.
var needed = []string{
	"config.json", "generation_config.json",
	"tokenizer.json", "tokenizer.model", "tekken.json", "tokenizer_config.json",
	"modules.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
}

// choose returns the files of s to download, as pointers into s.Files. index is
// the text of the weights' index if s has one and it is needed (see
// needsIndex).
func choose(s *snapshot, o *PullOptions, index []byte) ([]*remoteFile, error) {
	for _, p := range slices.Concat(o.Include, o.Exclude) {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	want, err := s.defaults(o, index)
	if err != nil {
		return nil, err
	}
	var list []*remoteFile
	seen := make(map[string]bool)
	for i := range s.Files {
		f := &s.Files[i]
		if !want(f.Name) || matches(o.Exclude, f.Name) {
			continue
		}
		if err := checkPath(f.Name); err != nil {
			return nil, fmt.Errorf("the hub lists a file whose name %w", err)
		}
		// On systems that ignore case, two names would be one file.
		if key := strings.ToLower(f.Name); seen[key] {
			return nil, fmt.Errorf("the hub lists the file %q twice", f.Name)
		} else {
			seen[key] = true
		}
		list = append(list, f)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("none of the repository's %d files is asked for", len(s.Files))
	}
	return list, nil
}

// needsIndex reports whether the choice depends on the weights' index: not beside a
// single file of weights, which takes precedence (see safetensors.OpenCheckpoint).
func needsIndex(s *snapshot, o *PullOptions) bool {
	if s.wantsGGUF(o) {
		return false
	}
	single := s.file(singleWeights) != nil && !matches(o.Exclude, singleWeights)
	return len(o.Include) == 0 && !single && s.file(weightsIndex) != nil && !matches(o.Exclude, weightsIndex)
}

// wantsGGUF reports whether the choice is a GGUF file: one is asked for, or there is
// nothing else.
func (s *snapshot) wantsGGUF(o *PullOptions) bool {
	return len(o.Include) == 0 && (s.Ref.Tag != "" || ggufOnly(s.names()))
}

func (s *snapshot) names() []string {
	names := make([]string, len(s.Files))
	for i, f := range s.Files {
		names[i] = f.Name
	}
	return names
}

func (s *snapshot) file(name string) *remoteFile {
	i := slices.IndexFunc(s.Files, func(f remoteFile) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Files[i]
}

// defaults returns a function that reports which names are wanted before
// exclusion.
func (s *snapshot) defaults(o *PullOptions, index []byte) (func(name string) bool, error) {
	if len(o.Include) > 0 {
		return func(name string) bool { return matches(o.Include, name) }, nil
	}
	names := make(map[string]bool)
	if s.wantsGGUF(o) {
		files, err := selectGGUF(s.names(), s.Ref.Tag)
		for _, n := range files {
			names[n] = true
		}
		return func(name string) bool { return names[name] }, err
	}
	for _, n := range needed {
		names[n] = true
	}
	switch {
	case index != nil:
		shards, err := parseIndex(index)
		if err != nil {
			return nil, err
		}
		for _, n := range shards {
			if s.file(n) == nil && !matches(o.Exclude, n) {
				return nil, fmt.Errorf("%s names %.200q, which the repository does not have", weightsIndex, n)
			}
			names[n] = true
		}
		names[weightsIndex] = true
	case s.file(singleWeights) != nil:
		names[singleWeights] = true
	case !matches(o.Exclude, singleWeights):
		return nil, fmt.Errorf("the repository has no weights in the safetensors layout: found %s, expected %s or %s", s.weights(), singleWeights, weightsIndex)
	}
	return func(name string) bool {
		return names[name] || path.Dir(name) == "additional_chat_templates" && path.Ext(name) == ".jinja" ||
			strings.HasSuffix(path.Dir(name), "_Pooling") && path.Base(name) == "config.json" // of models of embeddings
	}, nil
}

// weights names a few files that look like weights of another kind.
func (s *snapshot) weights() string {
	var list []string
	for _, f := range s.Files {
		switch path.Ext(f.Name) {
		case ".bin", ".pth", ".pt", ".gguf", ".onnx", ".safetensors", ".h5", ".msgpack":
			if len(list) == 3 {
				return strings.Join(list, ", ") + " …"
			}
			list = append(list, plain(f.Name))
		}
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, ", ")
}

// parseIndex returns the names of the shards, sorted.
func parseIndex(text []byte) ([]string, error) {
	var in struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("%s: %w", weightsIndex, err)
	}
	if len(in.Map) == 0 {
		return nil, fmt.Errorf("%s: weight_map is missing or empty", weightsIndex)
	}
	shards := slices.Sorted(maps.Values(in.Map))
	return slices.Compact(shards), nil
}

// matches reports whether a pattern matches the name, its last element, or, if
// the pattern ends in a slash, a folder above it.
func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if dir, ok := strings.CutSuffix(p, "/"); ok {
			for d := path.Dir(name); d != "." && d != "/"; d = path.Dir(d) {
				if ok, _ := path.Match(dir, d); ok {
					return true
				}
			}
			continue
		}
		if ok, _ := path.Match(p, name); ok {
			return true
		}
		if ok, _ := path.Match(p, path.Base(name)); ok {
			return true
		}
	}
	return false
}
