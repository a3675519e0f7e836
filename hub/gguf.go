package hub

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// defaultTags are tried in this order where a name has no tag.
var defaultTags = []string{"Q4_K_M", "Q8_0"}

// besides are parts of the names of GGUF files that only accompany a model.
var besides = []string{"mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"}

// splitName matches the name of one part of a model in several files: a prefix, the
// number of the part, from 1, and the number of parts.
var splitName = regexp.MustCompile(`^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$`)

// maxParts bounds the parts of a model.
const maxParts = 10_000

// selectGGUF returns which of the files of a repository or folder are the model that a
// tag asks for: one GGUF file, or all parts of one, in order. The rules are those of
// llama.cpp's -hf: the tag is found, in any case, before a point or a hyphen anywhere in
// the path, and the first file in the order of names counts. Without a tag, Q4_K_M is
// taken, else Q8_0, else the first model. An error lists the tags that there are.
func selectGGUF(names []string, tag string) ([]string, error) {
	models := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isModel(name) })
	if len(models) == 0 {
		return nil, fmt.Errorf("found no GGUF model")
	}
	first := ""
	for _, t := range defaultTags {
		first = cmp.Or(first, tagged(models, cmp.Or(tag, t)))
	}
	if first == "" && tag == "" {
		first = models[0]
	}
	if first == "" {
		return nil, fmt.Errorf("found no GGUF model with the tag %.80q, expected one of %s", tag, strings.Join(ggufTags(models), ", "))
	}
	m := splitName.FindStringSubmatch(first)
	if m == nil {
		return []string{first}, nil
	}
	count, _ := strconv.Atoi(m[3]) // five digits
	if count < 1 || count > maxParts {
		return nil, fmt.Errorf("%s: found %d parts, expected 1 to %d", first, count, maxParts)
	}
	parts := make([]string, count)
	for i := range parts {
		parts[i] = fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i+1, m[3])
		if !slices.Contains(names, parts[i]) {
			return nil, fmt.Errorf("%s: part %d of %d, %s, is missing", first, i+1, count, parts[i])
		}
	}
	return parts, nil
}

// isModel reports whether name is that of a model or of its first part.
func isModel(name string) bool {
	base := path.Base(name)
	if !strings.HasSuffix(strings.ToLower(base), ".gguf") {
		return false
	}
	lower := strings.ToLower(base)
	if slices.ContainsFunc(besides, func(s string) bool { return strings.Contains(lower, s) }) {
		return false
	}
	m := splitName.FindStringSubmatch(name)
	return m == nil || m[2] == "00001"
}

// tagged returns the first name with the tag, "" if there is none.
func tagged(names []string, tag string) string {
	tag = strings.ToLower(tag)
	for _, name := range names {
		lower := strings.ToLower(name)
		if strings.Contains(lower, tag+".") || strings.Contains(lower, tag+"-") {
			return name
		}
	}
	return ""
}

// ggufTags returns the tags of models: the last part of each name.
func ggufTags(models []string) []string {
	var tags []string
	for _, name := range models {
		stem := strings.TrimSuffix(path.Base(name), path.Ext(name))
		if m := splitName.FindStringSubmatch(path.Base(name)); m != nil {
			stem = m[1]
		}
		tag := stem[strings.LastIndexAny(stem, "-.")+1:]
		if !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	return tags
}

// FolderGGUF returns the GGUF file of a folder by the rules of the package documentation,
// the first of several parts. It returns "" if the folder is a checkpoint of another kind: if, without
// a tag, it has weights in the safetensors layout or no GGUF file.
func FolderGGUF(dir, tag string) (string, error) {
	names, err := folderNames(dir)
	if err != nil {
		return "", err
	}
	if tag == "" && !ggufOnly(names) {
		return "", nil
	}
	files, err := selectGGUF(names, tag)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.FromSlash(files[0])), nil
}

// folderNames lists the files in a folder and the folders in it, in lexical order: repositories
// keep a file's parts together in one of their own. Links are followed: a snapshot consists of
// them.
func folderNames(dir string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if name, e := filepath.Rel(dir, file); err == nil && e == nil && strings.ContainsRune(name, filepath.Separator) {
				return filepath.SkipDir
			}
			return err
		}
		if len(names) == maxFiles {
			return fmt.Errorf("found more than %d files in %s", maxFiles, dir)
		}
		name, err := filepath.Rel(dir, file)
		if info, e := os.Stat(file); e == nil && info.Mode().IsRegular() {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	return names, err
}

// ggufOnly reports whether the only models among the names are GGUF files.
func ggufOnly(names []string) bool {
	return !slices.Contains(names, singleWeights) && !slices.Contains(names, weightsIndex) && slices.ContainsFunc(names, isModel)
}
