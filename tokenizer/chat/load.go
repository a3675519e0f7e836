package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/jinja"
)

const (
	templateFile = "chat_template.jinja"
	namedFolder  = "additional_chat_templates" // NAME.jinja for each name
	configFile   = "tokenizer_config.json"
	tokensFile   = "special_tokens_map.json"

	defaultName = "default"  // the template used when none is asked for by name
	toolName    = "tool_use" // the template for conversations with tools

	// maxConfig is the size of the largest configuration file that is read.
	// Those with a quarter of a million added tokens are about 50 MB.
	maxConfig = 64 << 20

	maxTemplates = 64 // files of named templates
)

// Load reads the chat template of the checkpoint folder fsys: the file
// chat_template.jinja, else chat_template in tokenizer_config.json. If the folder
// also has a template named tool_use, that one renders conversations with tools. A
// folder without a template gives ErrNoTemplate.
func Load(fsys fs.FS) (*Template, error) {
	t, err := LoadNamed(fsys, defaultName)
	if err != nil {
		return nil, err
	}
	return t.withTools(LoadNamed(fsys, toolName))
}

// withTools adds the template for conversations with tools, if there is one. One that
// cannot be parsed is an error only when it is needed.
func (t *Template) withTools(tools *Template, err error) (*Template, error) {
	if !errors.Is(err, ErrNoTemplate) {
		t.tools, t.toolsErr = tools, err
	}
	return t, nil
}

// LoadNamed is Load for a template with a name other than "default", such as
// "tool_use" or "rag": from the folder additional_chat_templates, or from the
// list of named templates that chat_template in tokenizer_config.json may be.
// The only template of a folder that names none is "default".
func LoadNamed(fsys fs.FS, name string) (*Template, error) {
	file := templateFile
	if name != defaultName {
		file = path.Join(namedFolder, path.Base(name)+".jinja")
	}
	source, err := inputfile.ReadFS(fsys, file, jinja.MaxSource)
	if err == nil {
		return Parse(file, string(source))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load chat template: %w", err)
	}
	config, err := readConfig(fsys, configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load chat template %q: neither %s nor %s is there: %w", name, file, configFile, ErrNoTemplate)
	}
	if err != nil {
		return nil, fmt.Errorf("load chat template: %w", err)
	}
	named, err := configTemplates(config)
	if err != nil {
		return nil, fmt.Errorf("load chat template: %s: %w", configFile, err)
	}
	text, ok := named.Get(name)
	if !ok {
		var names []string
		for n := range named.All() {
			names = append(names, n)
		}
		return nil, fmt.Errorf("load chat template: %s: found the names [%s], expected %q: %w", configFile, strings.Join(names, " "), name, ErrNoTemplate)
	}
	label := configFile
	if name != defaultName {
		label += " (" + name + ")"
	}
	return Parse(label, text.(string))
}

// Sources returns the texts of all chat templates of the checkpoint folder fsys by their
// names, as [Load] and [LoadNamed] find them, without parsing them. A folder may have none.
func Sources(fsys fs.FS) (map[string]string, error) {
	out := map[string]string{}
	config, err := readConfig(fsys, configFile)
	if err == nil {
		var named *Object
		if named, err = configTemplates(config); err == nil {
			for name, text := range named.All() {
				out[name] = text.(string)
			}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load chat templates: %w", err)
	}
	files, err := fs.Glob(fsys, namedFolder+"/*.jinja")
	if err != nil {
		return nil, fmt.Errorf("load chat templates: %w", err)
	}
	if len(files) > maxTemplates {
		return nil, fmt.Errorf("load chat templates: found %d files in %s, expected at most %d", len(files), namedFolder, maxTemplates)
	}
	for _, file := range append(files, templateFile) {
		name := strings.TrimSuffix(path.Base(file), ".jinja")
		if file == templateFile {
			name = defaultName
		}
		text, err := inputfile.ReadFS(fsys, file, jinja.MaxSource)
		switch {
		case err == nil:
			out[name] = string(text)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("load chat templates: %w", err)
		}
	}
	return out, nil
}

// specialNames are the special tokens that templates know.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// readConfig reads what this package needs from a configuration file, which may
// be long because of its list of added tokens.
func readConfig(fsys fs.FS, file string) (*Object, error) {
	data, err := inputfile.ReadFS(fsys, file, maxConfig)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("%s: decode json: %w", file, err)
	}
	config := new(Object)
	for _, name := range append([]string{"chat_template", extraTokens}, specialNames...) {
		if raw, ok := fields[name]; ok {
			v, err := decodeJSON(raw)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, name, err)
			}
			config.Set(name, v)
		}
	}
	return config, nil
}

// configTemplates returns the templates in a tokenizer_config.json by name;
// all values are strings.
func configTemplates(config *Object) (*Object, error) {
	named := new(Object)
	v, _ := config.Get("chat_template")
	switch v := v.(type) {
	case nil:
	case string:
		named.Set(defaultName, v)
	case *Object: // by name
		for name, text := range v.All() {
			if _, ok := text.(string); !ok {
				return nil, fmt.Errorf("chat_template.%s: found %s, expected a string", name, jsonKind(text))
			}
			named.Set(name, text)
		}
	case []any:
		for i, e := range v {
			o, _ := e.(*Object)
			name, _ := o.Get("name")
			text, _ := o.Get("template")
			n, nok := name.(string)
			t, tok := text.(string)
			if !nok || !tok {
				return nil, fmt.Errorf("chat_template[%d]: expected an object with the strings name and template", i)
			}
			named.Set(n, t)
		}
	default:
		return nil, fmt.Errorf("chat_template: found %s, expected a string or an array", jsonKind(v))
	}
	return named, nil
}

// SpecialTokens reads the texts of the special tokens that the checkpoint folder
// fsys names, under the names that templates use (bos_token, eos_token,
// pad_token, unk_token …), from tokenizer_config.json and, for those it leaves
// out, special_tokens_map.json. Tokens that are null are absent. The result is
// meant for Input.SpecialTokens; it is empty if neither file exists.
func SpecialTokens(fsys fs.FS) (*Object, error) {
	tokens := new(Object)
	for _, file := range []string{configFile, tokensFile} {
		config, err := readConfig(fsys, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("load special tokens: %w", err)
		}
		for _, name := range specialNames {
			if _, ok := tokens.Get(name); ok {
				continue
			}
			if err := setSpecial(tokens, name, config); err != nil {
				return nil, fmt.Errorf("load special tokens: %s: %w", file, err)
			}
		}
		if err := extraSpecial(config, tokens); err != nil {
			return nil, fmt.Errorf("load special tokens: %s: %w", file, err)
		}
	}
	return tokens, nil
}

// setSpecial sets a name to the text of the token that config gives it: a string, an object
// with its content, or null.
func setSpecial(tokens *Object, name string, config *Object) error {
	v, _ := config.Get(name)
	if o, ok := v.(*Object); ok {
		v, _ = o.Get("content")
	}
	switch v := v.(type) {
	case nil:
	case string:
		tokens.Set(name, v)
	default:
		return fmt.Errorf("%s: found %s, expected a string or an object with content", name, jsonKind(v))
	}
	return nil
}

const extraTokens = "extra_special_tokens"

// extraSpecial adds tokens of a checkpoint's own names; a list of tokens without names says
// nothing to templates.
func extraSpecial(config, tokens *Object) error {
	v, _ := config.Get(extraTokens)
	extra, ok := v.(*Object)
	if !ok {
		return nil
	}
	for name := range extra.All() {
		if _, ok := tokens.Get(name); ok {
			continue
		}
		if err := setSpecial(tokens, name, extra); err != nil {
			return fmt.Errorf("%s: %w", extraTokens, err)
		}
	}
	return nil
}
