package structured

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// functions that answers may call.
var functions = []Function{
	{Name: "weather", Description: "tells the weather", Parameters: json.RawMessage(`{"type":"object","required":["city"],"properties":{"city":{"type":"string","maxLength":10}},"additionalProperties":false}`)},
	{Name: "now"},
}

// family returns the compiler and the syntax of the embedded model with the chat template of
// another, and its third token renamed.
func family(t testing.TB, template, token string) (*Compiler, *Syntax) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, builtin.Files()))
	text := []byte(template)
	if !strings.Contains(template, "{") {
		var err error
		text, err = os.ReadFile("../../tokenizer/chat/testdata/real/" + template + "/template.jinja")
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), text, 0o600))
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(path, 0o600))
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(data, []byte(`"</s>"`), []byte(`"`+token+`"`)), 0o600))
	}
	m, err := model.Open(t.Context(), dir)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	format, err := dialog.NewFormat(m, time.Now())
	require.NoError(t, err)
	c, err := NewCompiler(m)
	require.NoError(t, err)
	s, err := NewSyntax(m, format)
	require.NoError(t, err)
	return c, s
}

// TestReadCalls reads answers that models of each family give, in every way of cutting them
// into two or three pieces.
func TestReadCalls(t *testing.T) {
	names := map[string]bool{"weather": true, "now": true}
	one, two := `{"city": "a \"} ]{", "at": [1, {"x": 2}]}`, `{}`
	type call struct{ name, arguments string }
	both := []call{{"weather", one}, {"now", two}}
	for _, test := range []struct {
		syntax callSyntax
		answer string
		text   string
		calls  []call
	}{
		{qwenTools, "<tool_call>\n{\"name\": \"weather\", \"arguments\": " + one + "}\n</tool_call>", "", both[:1]},
		{qwenTools, "Let me see. <tool\n<tool_call>\n{\"name\": \"weather\", \"arguments\": " + one + "}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "Let me see. <tool\n", both},
		{qwenTools, "<tool_call> is a mark, and {\"name\": \"no\"} no call of it", "<tool_call> is a mark, and {\"name\": \"no\"} no call of it", nil},
		{qwenTools, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"ci", "", []call{{"weather", `{"ci`}}},
		{qwenTools, "<tool_call>\n{\"name\": \"wea", "", nil}, // the mark lets nothing but a call follow
		{qwenTools, "nothing <tool_ca", "nothing <tool_ca", nil},
		{mistralTools, `[TOOL_CALLS] [{"name": "weather", "arguments": ` + one + `}, {"name": "now", "arguments": {}}]`, "", both},
		{mistralTools, `[TOOL_CALLS][{"name": "now", "arguments": {}}]`, "", both[1:]},
		{llamaTools, `{"name": "weather", "parameters": ` + one + `}`, "", both[:1]},
		{llamaTools, `<|python_tag|>{"name": "now", "parameters": {}}`, "", both[1:]},
		{llamaTools, `Well, 1 <| 2. <|python_tag|>{"name": "weather", "parameters": ` + one + `}`, "Well, 1 <| 2. ", both[:1]},
		{llamaTools, `<|python_tag|>print(1 <|`, `<|python_tag|>print(1 <|`, nil},
		{llamaTools, `{"name": "other", "parameters": {}}`, `{"name": "other", "parameters": {}}`, nil},
		{llamaTools, `{"names": 1}`, `{"names": 1}`, nil},
		{llamaTools, ` {"name": "now", "parameters": {}}`, ` {"name": "now", "parameters": {}}`, nil},
		{llamaTools, `{"na`, `{"na`, nil},
		{llamaTools, "", "", nil},
		{plainTools, `{"name": "now", "arguments": {}}`, "", both[1:]},
		{qwenTools, "<tool_call>\n{\"name\": \"weather\", \"arguments\": \"}\"}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": null}\n</tool_call>", "", []call{{"weather", `"}"`}, {"now", "null"}}},
		{mistralTools, `[TOOL_CALLS][{"name": "now", "arguments": -1.5}]`, "", []call{{"now", "-1.5"}}},
		{argsTools, "[TOOL_CALLS]weather[ARGS]" + one + "[TOOL_CALLS]now[ARGS]{}", "", both},
		{argsTools, "Well [ARGS]. [TOOL_CALLS]now[ARGS]{}", "Well [ARGS]. ", both[1:]},
		{argsTools, "[TOOL_CALLS]weather[ARGS]{\"ci", "", []call{{"weather", `{"ci`}}},
		{argsTools, "[TOOL_CALLS]now[AR", "", nil},
		{argsTools, "[TOOL_CALLS]other[ARGS]{}", "[TOOL_CALLS]other[ARGS]{}", nil},
		{argsTools, "[TOOL_CALLS] stands before each call, so that whoever reads an answer finds it.", "[TOOL_CALLS] stands before each call, so that whoever reads an answer finds it.", nil},
		{graniteTools, `<|tool_call|>[{"name": "weather", "arguments": ` + one + `}, {"name": "now", "arguments": {}}]`, "", both},
		{phiTools, `<|tool_call|>{"name": "weather", "arguments": ` + one + `}<|/tool_call|><|tool_call|>{"name": "now", "arguments": {}}<|/tool_call|>`, "", both},
		{phiTools, `So: <|tool_call|>{"name": "now", "arguments": {}}`, "So: ", both[1:]},
	} {
		n := len(test.answer)
		for i := range n + 1 {
			for j := i; j <= n; j += 1 + (n-i)/6 {
				r := callReader{t: &Tools{callSyntax: &test.syntax, names: names}}
				text := ""
				var calls []call
				for k, piece := range []string{test.answer[:i], test.answer[i:j], test.answer[j:]} {
					more, deltas := r.add(piece, k == 2)
					text += more
					for _, d := range deltas {
						if d.Name != "" {
							require.NotEmpty(t, d.ID)
							calls = append(calls, call{name: d.Name})
						}
						calls[d.Index].arguments += d.Arguments
					}
				}
				require.Equal(t, test.text, text, "%s: %q cut at %d and %d", test.syntax.name, test.answer, i, j)
				require.Equal(t, test.calls, calls, "%s: %q cut at %d and %d", test.syntax.name, test.answer, i, j)
			}
		}
	}
	require.Len(t, (&Tools{callSyntax: &mistralTools}).newID(), 9)
}

// TestCutHeads: the beginning of a call that has to be made is no text, wherever it is cut.
func TestCutHeads(t *testing.T) {
	for _, syntax := range []callSyntax{qwenTools, mistralTools, argsTools, graniteTools, phiTools, llamaTools, plainTools} {
		whole := syntax.mark + syntax.before + syntax.open + "now" + syntax.middle
		if syntax.close == "]" {
			whole = syntax.mark + "[" + syntax.open + "now" + syntax.middle
		}
		for n := range len(whole) {
			r := callReader{t: &Tools{callSyntax: &syntax, names: map[string]bool{"now": true}, o: ToolOptions{Required: true}}}
			text, calls := r.add(whole[:n], true)
			require.Empty(t, text, "%s: %q", syntax.name, whole[:n])
			require.Empty(t, calls)
		}
	}
}

// likeLlama writes calls as Llama 3.1 does: one, as the whole answer.
const likeLlama = `{{ bos_token }}{% for m in messages %}{% if loop.first and tools %}{% for t in tools %}{{ t | tojson(indent=4) }}
{% endfor %}{% endif %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception("one call at once") }}{% endif %}` +
	`{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}{% endfor %}`

// showsTools shows functions and does not know calls.
const showsTools = `{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}`

// Templates like those of later models. The last two show functions and say how to call them,
// and leave calls out of what was said.
const (
	likeDevstral = `{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}` +
		`[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}`
	likePhi = `{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}` +
		`<|tool_call|>{{ c.function | tojson }}<|/tool_call|>{% endfor %}{% endfor %}`
	likeGranite = `{{ bos_token }}{% if tools %}To call, write <|tool_call|> and a list. {{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}`
	likeSmolLM3 = `{{ bos_token }}{% if tools %}{{ tools | tojson }} Write <tool_call> JSON </tool_call>.{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}`
)

// TestToolFamilies: the syntax follows the template, calls that have to be made are read
// back, and if none has to be, only a call can follow the mark.
func TestToolFamilies(t *testing.T) {
	for _, test := range []struct {
		template, token, name string
		first                 bool
		text, call            string // an answer up to a call, and the call up to its arguments
	}{
		{likeLlama, llamaTag, "llama", true, llamaTag, `{"name": "weather", "parameters": `},
		{likeLlama, "</s>", "llama", false, "", `{"name": "weather", "parameters": `},
		{"mistral-7b-instruct-v0.3", "[TOOL_CALLS]", "mistral", true, "[TOOL_CALLS]", ` [{"name": "weather", "arguments": `},
		{"mistral-nemo-instruct-2407", "</s>", "mistral", false, "Well. [TOOL_CALLS]", `[{"name": "weather", "arguments": `},
		{"qwen2.5-7b-instruct", "</s>", "qwen", false, "Let me see.\n<tool_call>", "\n" + `{"name": "weather", "arguments": `},
		{likeDevstral, "[TOOL_CALLS]", "mistral args", true, "[TOOL_CALLS]", "weather[ARGS]"},
		{likeDevstral, "[ARGS]", "mistral args", false, "Well. [TOOL_CALLS]", "weather[ARGS]"},
		{likePhi, "<|tool_call|>", "phi", true, "<|tool_call|>", `{"name": "weather", "arguments": `},
		{likePhi, "<|/tool_call|>", "phi", false, "Well. <|tool_call|>", `{"name": "weather", "arguments": `},
		{likeGranite, "<|tool_call|>", "granite", true, "<|tool_call|>", `[{"name": "weather", "arguments": `},
		{likeSmolLM3, "</s>", "qwen", false, "<tool_call>", "\n" + `{"name": "weather", "arguments": `},
		{"zephyr-tinyllama", "</s>", "plain", false, "", `{"name": "weather", "arguments": `},
		{showsTools, "</s>", "plain", false, "", `{"name": "weather", "arguments": `},
	} {
		t.Run(test.name+" "+test.token, func(t *testing.T) {
			c, s := family(t, test.template, test.token)
			tok, plain := c.tok, &model.Sampling{}
			require.Equal(t, test.name, s.calls().name)
			require.Equal(t, test.first, s.calls().first >= 0)
			require.Equal(t, test.template != "zephyr-tinyllama", s.calls().shown)
			calls, err := s.Tools(functions, ToolOptions{})
			require.NoError(t, err)
			plan := func(f Format) Mask {
				p, err := c.Plan(t.Context(), Output{Tools: calls, Format: f}, plain, 1)
				require.NoError(t, err)
				require.True(t, p.ShowSpecial() && p.Splits())
				return p.Mask
			}
			q := plan(Format{})
			mask, err := q(t.Context(), 0, nil)
			require.NoError(t, err)
			require.Nil(t, mask, "everything may come")
			ids := tok.Encode(test.text, tokenizer.EncodeOptions{})
			for _, part := range []string{test.call, `{"city": "`} {
				ids = append(ids, tok.Encode(part, tokenizer.EncodeOptions{})...)
				for i := range ids { // token by token, as the engine asks
					_, err := q(t.Context(), 0, ids[:i+1])
					require.NoError(t, err)
				}
				mask, err = q(t.Context(), 0, ids)
				require.NoError(t, err)
				require.NotNil(t, mask)
				allowed := func(s string) bool {
					id := tok.Encode(s, tokenizer.EncodeOptions{})[0]
					return mask[id>>6]>>(id&63)&1 == 1
				}
				require.True(t, part != test.call || allowed("{"), "an object begins")
				require.Equal(t, part != test.call, allowed("a"), "a text is open")
				require.False(t, allowed("<s>"))
			}
			// With a format, the answer follows it or makes calls.
			q = plan(Choice("yes", "no"))
			begin := tok.Encode("yes", tokenizer.EncodeOptions{})
			mask, err = q(t.Context(), 0, nil)
			require.NoError(t, err)
			call := tok.Encode(s.calls().mark+test.call, tokenizer.EncodeOptions{})
			for id, want := range map[int32]bool{begin[0]: true, call[0]: true, tok.Encode("w", tokenizer.EncodeOptions{})[0]: false} {
				require.Equal(t, want, mask[id>>6]>>(id&63)&1 == 1, "%q", tok.Piece(id))
			}
			for i := range call {
				_, err = q(t.Context(), 0, call[:i+1])
				require.NoError(t, err)
			}
			// Other text stays free.
			q = plan(Format{})
			for i, text := 0, tok.Encode(`{"n": <tool_cal>`, tokenizer.EncodeOptions{}); i <= len(text); i++ {
				mask, err = q(t.Context(), 0, text[:i])
				require.NoError(t, err)
				require.Nil(t, mask)
			}
		})
	}
}

// TestManyTools: schemas that together are too large are refused only if they have to be
// enforced.
func TestManyTools(t *testing.T) {
	c, s := family(t, showsTools, "</s>")
	var large []Function
	for i := range 70 {
		schema := fmt.Sprintf(`{"type":"object","properties":{"%s":{}}}`, strings.Repeat("x", 1000))
		large = append(large, Function{Name: fmt.Sprint("f", i), Parameters: json.RawMessage(schema)})
	}
	call := []byte(`{"name": "f69` + s.calls().middle + `{"`)
	for o, ok := range map[ToolOptions]bool{{}: true, {Required: true}: false, {Only: "f69"}: true} {
		calls, err := s.Tools(large, o)
		require.NoError(t, err)
		g, err := c.grammar(t.Context(), calls.format(t.Context(), c))
		require.Equal(t, ok, err == nil, "%v: %v", o, err)
		if ok {
			at, err := g.Bytes(t.Context(), nil, g.Start(), call)
			require.NoError(t, err)
			require.NotNil(t, at)
		}
	}
	large[0].Strict = true
	calls, err := s.Tools(large, ToolOptions{})
	require.NoError(t, err)
	_, err = c.grammar(t.Context(), calls.format(t.Context(), c))
	require.NoError(t, err)
}

// TestControlTokensInCalls: where a mark within calls or between them is a control token, that
// token is what comes, and the same letters as text do not.
func TestControlTokensInCalls(t *testing.T) {
	for _, test := range []struct {
		template, token string
		before          string // of a call of now, up to the token
		text            string // the beginning of the same letters
	}{
		{likeDevstral, "[ARGS]", "[TOOL_CALLS]now", "["},
		{likeDevstral, "[TOOL_CALLS]", "[TOOL_CALLS]now[ARGS]{}", "["},
		{likePhi, "<|/tool_call|>", `<|tool_call|>{"name": "now", "arguments": {}}`, "<"},
		{likePhi, "<|tool_call|>", `<|tool_call|>{"name": "now", "arguments": {}}<|/tool_call|>`, "<"},
	} {
		c, s := family(t, test.template, test.token)
		for _, o := range []ToolOptions{{}, {Required: true}} {
			calls, err := s.Tools(functions[1:], o)
			require.NoError(t, err)
			p, err := c.Plan(t.Context(), Output{Tools: calls}, &model.Sampling{}, 1)
			require.NoError(t, err)
			ids := c.tok.Encode(test.before, tokenizer.EncodeOptions{})
			mask, err := p.Mask(t.Context(), 0, ids)
			require.NoError(t, err)
			allowed := func(id int32) bool { return mask[id>>6]>>(id&63)&1 == 1 }
			require.True(t, allowed(markID), "%s after %s", test.token, test.before)
			for id := range int32(c.m.Config().Vocab) { // such as the byte that stands for it in the grammar
				require.False(t, bytes.Contains(c.tok.TokenBytes(id), []byte(noText)) && allowed(id), "token %d after %s", id, test.before)
			}
			text := c.tok.Encode("x"+test.text, tokenizer.EncodeOptions{})
			require.False(t, allowed(text[len(text)-1]), "%q after %s", test.text, test.before)
		}
		g, err := c.grammar(t.Context(), Regexp("(?s).*"))
		require.NoError(t, err)
		mask, _, err := g.Mask(t.Context(), grammar.NewBudget(1), g.Start())
		require.NoError(t, err)
		require.Zero(t, mask[0]>>markID&1, "no text has control tokens")
	}
}

// TestOneCallAtOnce: without parallel calls a second one cannot follow.
func TestOneCallAtOnce(t *testing.T) {
	c, s := family(t, "qwen2.5-7b-instruct", "</s>")
	one := "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"
	for _, o := range []ToolOptions{{}, {Single: true}, {Required: true}, {Required: true, Single: true}} {
		calls, err := s.Tools(functions[1:], o)
		require.NoError(t, err)
		g, err := c.grammar(t.Context(), calls.format(t.Context(), c))
		require.NoError(t, err)
		text := one
		if !o.Required { // it applies to what follows the mark
			text = strings.TrimPrefix(text, "<tool_call>")
		}
		state, err := g.Bytes(t.Context(), grammar.NewBudget(1), g.Start(), []byte(text))
		require.NoError(t, err)
		require.NotNil(t, state)
		require.True(t, state.MayEnd())
		state, err = g.Bytes(t.Context(), grammar.NewBudget(1), g.Start(), []byte(text+"\n"+one))
		require.NoError(t, err)
		require.Equal(t, o.Single, state == nil, "%v", o)
	}
}

// TestFunctions: wrong functions are refused, and arguments are objects if the schema does
// not say otherwise.
func TestFunctions(t *testing.T) {
	_, s := family(t, showsTools, "</s>")
	var name *NameError
	for _, bad := range [][]Function{{{Name: "a b"}}, {{Name: "a"}, {Name: "a"}}, {{}}} {
		_, err := s.Tools(bad, ToolOptions{})
		require.ErrorAs(t, err, &name)
		require.Equal(t, len(bad)-1, name.Function)
	}
	_, err := s.Tools(nil, ToolOptions{})
	require.ErrorContains(t, err, "at least one")
	_, err = s.Tools(functions, ToolOptions{Only: "other"})
	require.ErrorContains(t, err, `found "other"`)
	for schema, want := range map[string]string{
		`{}`: `{"type":"object"}`, `{ }`: `{"type":"object"}`, ` {"required":["x"]}`: `{"type":"object","required":["x"]}`,
		`{"type":"string"}`: `{"type":"string"}`, `{"$ref":"#/$defs/x"}`: `{"$ref":"#/$defs/x"}`, `{"a":}`: `{"a":}`,
	} {
		require.Equal(t, want, string(OfObjects(json.RawMessage(schema))))
	}
}

// TestShow: functions are shown by the template, or explained before the first user message.
func TestShow(t *testing.T) {
	for template, explained := range map[string]bool{showsTools: false, "zephyr-tinyllama": true} {
		_, s := family(t, template, "</s>")
		calls, err := s.Tools(functions, ToolOptions{})
		require.NoError(t, err)
		in := chat.Input{Messages: []*chat.Object{chat.NewMessage("system", "Be brief."), chat.NewMessage("user", "Hello")}}
		own := in.Messages
		require.NoError(t, calls.Show(&in))
		mine, _ := own[1].Get("content")
		require.Equal(t, "Hello", mine, "the caller's messages stay as they are")
		text, _ := in.Messages[1].Get("content")
		require.Equal(t, explained, strings.Contains(text.(string), `"name":"weather"`), text)
		require.Equal(t, explained, in.Tools == nil)
		in.Messages = in.Messages[:1]
		require.Equal(t, explained, calls.Show(&in) != nil)
	}
}
