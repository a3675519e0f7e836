package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/internal/jinja"
	"github.com/lukv/lukv/tokenizer"
)

// TestErrors: failures of the language become this package's errors.
func TestErrors(t *testing.T) {
	tmpl, err := Parse("test", "\n{{ raise_exception('no ' ~ 1) }}")
	require.NoError(t, err)
	_, err = tmpl.Render(context.Background(), Input{})
	var raised *RaisedError
	require.ErrorAs(t, err, &raised)
	assert.Equal(t, "no 1", raised.Message)
	assert.Equal(t, "chat template test: line 2, column 4: raised by the template: no 1", err.Error())

	_, err = Parse("test", "a\n{% include 'x' %}")
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, Error{Template: "test", Line: 2, Column: 4, Err: e.Err}, *e)
	assert.ErrorIs(t, err, ErrUnsupported)

	tmpl, err = Parse("test", "{{ 'x' * 100 }}")
	require.NoError(t, err)
	_, err = tmpl.Render(context.Background(), Input{Options: Options{Limits: Limits{Memory: 50}}})
	assert.ErrorIs(t, err, ErrLimit)
	_, err = tmpl.Render(context.Background(), Input{SpecialTokens: new(Object).Set("bos_token", 1)})
	assert.ErrorContains(t, err, "special token bos_token: found int, expected a string")
}

// specials are the special tokens of most templates.
var specials = new(Object).Set("bos_token", "<s>").Set("eos_token", "</s>")

func parseFile(t testing.TB, name string) *Template {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "real", name, "template.jinja"))
	require.NoError(t, err)
	tmpl, err := Parse(name, string(source))
	require.NoError(t, err)
	return tmpl
}

func TestConcurrent(t *testing.T) {
	tmpl := parseFile(t, "mistral-nemo-instruct-2407")
	in := Input{
		Messages:            []*Object{NewMessage("system", "be brief"), NewMessage("user", "hi")},
		Tools:               []*Object{},
		AddGenerationPrompt: true, SpecialTokens: specials,
	}
	want, err := tmpl.Render(context.Background(), in)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tmpl.Render(context.Background(), in)
				assert.NoError(t, err)
				assert.Equal(t, want, got)
			}
		})
	}
	wg.Wait()
}

func TestInput(t *testing.T) {
	tmpl, err := Parse("t", "{{ bos_token is defined }} {{ eos_token }} {{ tools }} {{ documents }} {{ add_generation_prompt }} {{ messages }} {{ mode }}")
	require.NoError(t, err)
	got, err := tmpl.Render(context.Background(), Input{SpecialTokens: new(Object).Set("eos_token", "</s>"), Extra: new(Object).Set("mode", "x")})
	require.NoError(t, err)
	assert.Equal(t, "False </s> None None False [] x", got.Text)

	got, err = tmpl.Render(context.Background(), Input{
		Messages: []*Object{NewMessage("user", "q").Set("n", 1).Set("f", float32(0.5)).Set("l", []string{"a"}).
			Set("j", new(Object).Set("z", 1).Set("a", []float64{1})).Set("u", uint64(math.MaxUint64)).Set("none", (*Object)(nil))},
		Tools: []*Object{}, SpecialTokens: specials, AddGenerationPrompt: true,
		Extra: new(Object).Set("bos_token", "B").Set("eos_token", nil).Set("mode", json.Number("12")),
	})
	require.NoError(t, err)
	assert.Equal(t, "True None [] None True [{'role': 'user', 'content': 'q', 'n': 1, 'f': 0.5, 'l': ['a'], "+
		"'j': {'z': 1, 'a': [1.0]}, 'u': 18446744073709551615, 'none': None}] 12", got.Text)

	for name, v := range map[string]any{
		"expected an object that keeps": map[string]any{"a": 1},
		"found a Go value of type s":    struct{}{},
		"messages[0].tool[1]: found":    []any{1, make(chan int)},
	} {
		_, err := tmpl.Render(context.Background(), Input{Messages: []*Object{new(Object).Set("tool", v)}})
		assert.ErrorContains(t, err, name)
	}
	loop := []any{nil}
	loop[0] = loop
	_, err = tmpl.Render(context.Background(), Input{Extra: new(Object).Set("x", loop)})
	assert.ErrorIs(t, err, ErrLimit)
}

// TestRoles: a known role can be part of a control token, other text cannot.
func TestRoles(t *testing.T) {
	tmpl, err := Parse("t", "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content }}{% endfor %}")
	require.NoError(t, err)
	p, err := tmpl.Render(context.Background(), Input{Messages: []*Object{NewMessage("user", "user"), NewMessage("root", "x")}})
	require.NoError(t, err)
	assert.Equal(t, "<|user|>user<|root|>x", p.Text)
	assert.Equal(t, []tokenizer.Span{{Start: 8, End: 12}, {Start: 14, End: 18}, {Start: 20, End: 21}}, p.Data)
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		template, content, prefix, suffix string
	}{
		{"mistral-7b-instruct-v0.3", "some context\n", "<s> [INST] some context\n", " [/INST]"},
		{"qwen2.5-7b-instruct", " ctx ", "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n<|im_start|>user\n ctx ", "<|im_end|>\n<|im_start|>assistant\n"},
		{"zephyr-tinyllama", "has EndOfContent0Mark and EndOfContent1 inside", "<|user|>\nhas EndOfContent0Mark and EndOfContent1 inside", "</s>\n<|assistant|>\n"},
	} {
		prefix, suffix, err := parseFile(t, c.template).Split(context.Background(),
			Input{AddGenerationPrompt: true, SpecialTokens: specials}, c.content)
		require.NoError(t, err)
		assert.Equal(t, c.prefix, prefix.Text)
		assert.Equal(t, c.suffix, suffix.Text)
	}
	for source, want := range map[string]string{
		"{{ messages[0].content|upper }}":                    "printed 0 times",
		"{{ messages[0].content }}{{ messages[0].content }}": "printed 2 times",
		"{{ raise_exception('no') }}":                        "raised by the template: no",
	} {
		tmpl, err := Parse("t", source)
		require.NoError(t, err)
		_, _, err = tmpl.Split(context.Background(), Input{}, "x")
		assert.ErrorContains(t, err, want)
	}
}

// TestSplitAnyContent: prefix and suffix are those of the whole render, whatever
// the content holds.
func TestSplitAnyContent(t *testing.T) {
	tmpl := parseFile(t, "mixtral-8x7b-instruct-v0.1")
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.SampledFrom([]string{"EndOfContent", "0", "1", "2", "Mark", "x", "[INST]", "é"})
		content := strings.Join(rapid.SliceOf(piece).Draw(t, "content"), "")
		prefix, suffix, err := tmpl.Split(context.Background(), Input{SpecialTokens: specials}, content)
		if err != nil {
			t.Fatal(err)
		}
		if prefix.Text != "<s>[INST] "+content || suffix.Text != " [/INST]" {
			t.Fatalf("split %q into %q and %q", content, prefix.Text, suffix.Text)
		}
	})
}

func TestDecodeJSON(t *testing.T) {
	v, err := decodeJSON([]byte(` {"z": [1, 1.0, 1e2, -0, 12345678901234567890, true, null, "\u00e9\ud83d\ude00"], "a": {}, "z2": 0, "a": {"b": 1e999}} `))
	require.NoError(t, err)
	tmpl, err := Parse("t", "{{ v }}")
	require.NoError(t, err)
	got, err := tmpl.Render(context.Background(), Input{Extra: new(Object).Set("v", v)})
	require.NoError(t, err)
	assert.Equal(t, "{'z': [1, 1.0, 100.0, 0, 12345678901234567890, True, None, 'é😀'], 'a': {'b': inf}, 'z2': 0}", got.Text)

	for in, want := range map[string]string{
		"":                                   "unexpected EOF",
		"{":                                  "EOF",
		"[1,":                                "EOF",
		`{"a" 1}`:                            "invalid character",
		"[1] 2":                              "found more after the value",
		"[1]]":                               "found more after the value",
		"nan":                                "invalid character",
		strings.Repeat("[", 1000):            "nested deeper than",
		"1" + strings.Repeat("0", maxDigits): "integer of",
	} {
		_, err := decodeJSON([]byte(in))
		assert.ErrorContains(t, err, want, "%.20s", in)
	}
	var o Object
	assert.ErrorContains(t, o.UnmarshalJSON([]byte("[]")), "found an array, expected an object")
}

// TestObjectModel runs an Object against a slice of pairs.
func TestObjectModel(t *testing.T) {
	type pair struct {
		key   string
		value int
	}
	rapid.Check(t, func(t *rapid.T) {
		var o Object
		var model []pair
		for range rapid.IntRange(0, 40).Draw(t, "n") {
			p := pair{rapid.StringMatching("[ab]{0,2}").Draw(t, "key"), rapid.Int().Draw(t, "value")}
			o.Set(p.key, p.value)
			found := false
			for i := range model {
				if model[i].key == p.key {
					model[i], found = p, true
				}
			}
			if !found {
				model = append(model, p)
			}
		}
		if o.Len() != len(model) {
			t.Fatalf("length %d, want %d", o.Len(), len(model))
		}
		i := 0
		for key, v := range o.All() {
			if (pair{key, v.(int)}) != model[i] {
				t.Fatalf("entry %d: found %s=%v, want %v", i, key, v, model[i])
			}
			i++
		}
		data, err := json.Marshal(&o)
		if err != nil {
			t.Fatal(err)
		}
		var back Object
		if err := back.UnmarshalJSON(data); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(&back)
		if err != nil || string(again) != string(data) {
			t.Fatalf("read back %s (%v), want %s", again, err, data)
		}
	})
	var none *Object
	_, ok := none.Get("a")
	assert.False(t, ok)
	assert.Zero(t, none.Len())
	for range none.All() {
		t.Error("a nil object has entries")
	}
	data, err := json.Marshal(none)
	require.NoError(t, err)
	assert.Equal(t, "null", string(data))
}

func TestLoad(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	list := `{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}`
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		ask   string
		want  string // rendered text, or part of the error
		is    error
		fails bool
	}{
		{name: "string", files: fstest.MapFS{configFile: file(`{"chat_template": "S{{ 1 }}"}`)}, want: "S1"},
		{name: "file wins", files: fstest.MapFS{configFile: file(`{"chat_template": "S"}`), templateFile: file("F\n")}, want: "F"},
		{name: "list", files: fstest.MapFS{configFile: file(list)}, want: "D"},
		{name: "list by name", files: fstest.MapFS{configFile: file(list)}, ask: "tool_use", want: "T"},
		{name: "folder by name", files: fstest.MapFS{templateFile: file("F"), "additional_chat_templates/rag.jinja": file("R")}, ask: "rag", want: "R"},
		{name: "object", files: fstest.MapFS{configFile: file(`{"chat_template": {"default": "D", "tool_use": "T"}}`)}, want: "D"},
		{name: "object by name", files: fstest.MapFS{configFile: file(`{"chat_template": {"default": "D", "tool_use": "T"}}`)}, ask: "tool_use", want: "T"},
		{name: "object of numbers", files: fstest.MapFS{configFile: file(`{"chat_template": {"default": 3}}`)}, want: "chat_template.default", fails: true},
		{name: "list without the name", files: fstest.MapFS{configFile: file(list)}, ask: "rag", want: "[default tool_use]", is: ErrNoTemplate, fails: true},
		{name: "no path in a name", files: fstest.MapFS{"x.jinja": file("X")}, ask: "../x", is: ErrNoTemplate, fails: true},
		{name: "nothing there", files: fstest.MapFS{}, is: ErrNoTemplate, fails: true},
		{name: "no template", files: fstest.MapFS{configFile: file(`{"bos_token": "x"}`)}, is: ErrNoTemplate, fails: true},
		{name: "null template", files: fstest.MapFS{configFile: file(`{"chat_template": null}`)}, is: ErrNoTemplate, fails: true},
		{name: "number", files: fstest.MapFS{configFile: file(`{"chat_template": 3}`)}, want: "found a number, expected a string or an array", fails: true},
		{name: "bad entry", files: fstest.MapFS{configFile: file(`{"chat_template": [{"name": 1}]}`)}, want: "chat_template[0]", fails: true},
		{name: "entry null", files: fstest.MapFS{configFile: file(`{"chat_template": [null]}`)}, want: "chat_template[0]", fails: true},
		{name: "broken json", files: fstest.MapFS{configFile: file(`{"chat_template": `)}, want: "tokenizer_config.json: decode json", fails: true},
		{name: "broken template", files: fstest.MapFS{templateFile: file("\n{% if %}")}, want: "chat_template.jinja: line 2, column 7", fails: true},
		{name: "too long", files: fstest.MapFS{templateFile: file(strings.Repeat("x", jinja.MaxSource+1))}, want: "longer than", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.ask == "" {
				c.ask = defaultName
			}
			tmpl, err := LoadNamed(c.files, c.ask)
			if c.ask == defaultName {
				tmpl, err = Load(c.files)
			}
			if c.fails {
				require.ErrorContains(t, err, c.want)
				if c.is != nil {
					assert.ErrorIs(t, err, c.is)
				} else {
					assert.NotErrorIs(t, err, ErrNoTemplate)
				}
				return
			}
			require.NoError(t, err)
			got, err := tmpl.Render(context.Background(), Input{})
			require.NoError(t, err)
			assert.Equal(t, c.want, got.Text)
		})
	}
}

// TestSources: the texts that Load and LoadNamed parse, by name.
func TestSources(t *testing.T) {
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  map[string]string
	}{
		"none": {fstest.MapFS{}, map[string]string{}},
		"one":  {fstest.MapFS{"tokenizer_config.json": {Data: []byte(`{"chat_template": "a{{"}`)}}, map[string]string{"default": "a{{"}},
		"files go before the config": {fstest.MapFS{
			"tokenizer_config.json": {Data: []byte(`{"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}, {"name": "x", "template": "c"}]}`)},
			"chat_template.jinja":   {Data: []byte("d")}, "additional_chat_templates/rag.jinja": {Data: []byte("e")}, "additional_chat_templates/tool_use.jinja": {Data: []byte("f")},
		}, map[string]string{"default": "d", "rag": "e", "x": "c", "tool_use": "f"}},
	} {
		got, err := Sources(c.files)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		for n, text := range got {
			if parsed, err := LoadNamed(c.files, n); err == nil {
				require.Equal(t, text, parsed.Source())
			}
		}
	}
	many := fstest.MapFS{}
	for i := range 65 {
		many[fmt.Sprintf("additional_chat_templates/%d.jinja", i)] = &fstest.MapFile{}
	}
	_, err := Sources(many)
	require.ErrorContains(t, err, "found 65 files")
	_, err = Sources(fstest.MapFS{"tokenizer_config.json": {Data: []byte(`{"chat_template": 1}`)}})
	require.ErrorContains(t, err, "chat_template: found")
	_, err = Sources(fstest.MapFS{"tokenizer_config.json": {Data: []byte(`{`)}})
	require.ErrorContains(t, err, "tokenizer_config.json")
}

func TestSpecialTokens(t *testing.T) {
	files := fstest.MapFS{
		configFile: {Data: []byte(`{"bos_token": null, "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "<pad>"}`)},
		tokensFile: {Data: []byte(`{"bos_token": "<s>", "eos_token": "<other>", "unk_token": {"content": "<unk>"}}`)},
	}
	tokens, err := SpecialTokens(files)
	require.NoError(t, err)
	data, err := json.Marshal(tokens)
	require.NoError(t, err)
	assert.JSONEq(t, `{"eos_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>", "unk_token": "<unk>"}`, string(data))

	// Tokens of a checkpoint's own names, which never replace the common ones.
	tokens, err = SpecialTokens(fstest.MapFS{configFile: {Data: []byte(`{"extra_special_tokens": {"image_token": "<i>", "eos_token": "no", "tool": {"content": "<t>"}, "none": null}, "eos_token": "</s>"}`)}})
	require.NoError(t, err)
	data, err = json.Marshal(tokens)
	require.NoError(t, err)
	assert.JSONEq(t, `{"eos_token": "</s>", "image_token": "<i>", "tool": "<t>"}`, string(data))
	tokens, err = SpecialTokens(fstest.MapFS{configFile: {Data: []byte(`{"extra_special_tokens": ["<i>"]}`)}})
	require.NoError(t, err)
	assert.Zero(t, tokens.Len(), "without names")
	_, err = SpecialTokens(fstest.MapFS{configFile: {Data: []byte(`{"extra_special_tokens": {"image_token": 5}}`)}})
	assert.ErrorContains(t, err, "extra_special_tokens: image_token: found a number")

	tokens, err = SpecialTokens(fstest.MapFS{})
	require.NoError(t, err)
	assert.Zero(t, tokens.Len())
	_, err = SpecialTokens(fstest.MapFS{configFile: {Data: []byte(`{"bos_token": 5}`)}})
	assert.ErrorContains(t, err, "tokenizer_config.json: bos_token: found a number")
	_, err = SpecialTokens(brokenFS{})
	assert.ErrorIs(t, err, fs.ErrPermission)
}

type brokenFS struct{}

func (brokenFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestLoadUnreadable(t *testing.T) {
	_, err := Load(brokenFS{})
	require.ErrorIs(t, err, fs.ErrPermission)
	assert.False(t, errors.Is(err, ErrNoTemplate))
}

func ExampleTemplate_Render() {
	tmpl, err := Parse("example", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt, err := tmpl.Render(context.Background(), Input{
		Messages:            []*Object{NewMessage("system", "Be brief."), NewMessage("user", "Hello!")},
		AddGenerationPrompt: true,
	})
	fmt.Println(prompt.Text, err)
	// Output: <system>Be brief.<user>Hello!<assistant> <nil>
}

func BenchmarkRender(b *testing.B) {
	tmpl := parseFile(b, "mistral-nemo-instruct-2407")
	for _, turns := range []int{1, 100} {
		b.Run(fmt.Sprintf("turns=%d", turns), func(b *testing.B) {
			in := Input{SpecialTokens: specials}
			for range turns {
				in.Messages = append(in.Messages, NewMessage("user", "a question of some length"), NewMessage("assistant", "an answer"))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tmpl.Render(context.Background(), in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
