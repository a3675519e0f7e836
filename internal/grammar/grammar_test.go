package grammar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/stretchr/testify/require"
)

var bg = context.Background()

// letters returns a vocabulary of all bytes, some pieces of JSON, words, and tokens that
// are duplicates or empty.
func letters() *Vocabulary {
	var list []string
	for b := range 256 {
		list = append(list, string([]byte{byte(b)}))
	}
	list = append(list, `{"`, `":`, `", "`, `"}`, `"]}`, "null", "true", "}\n", "\n    ", "hello", " world", "é", "\xc3", "日本", "日本語 text", `\u00`, `\"`, "12", "-1", ".5", "", "a", "name", `"name`, "  ", `","`, "abcdefghij")
	return NewVocabulary(len(list), func(id int32) []byte { return []byte(list[id]) })
}

// valid judges a value by a schema: an independent definition of the keywords.
func valid(root, schema, v any) bool {
	switch schema := schema.(type) {
	case bool:
		return schema
	case map[string]any:
		return validObject(root, schema, v)
	}
	panic("no schema")
}

func validObject(root any, s map[string]any, v any) bool {
	if ref, ok := s["$ref"].(string); ok {
		target := root
		for _, p := range strings.Split(ref, "/")[1:] {
			target = target.(map[string]any)[p]
		}
		return valid(root, target, v)
	}
	some := func(key string) int {
		n := 0
		for _, x := range s[key].([]any) {
			if valid(root, x, v) {
				n++
			}
		}
		return n
	}
	if s["anyOf"] != nil && some("anyOf") == 0 || s["oneOf"] != nil && some("oneOf") != 1 || s["allOf"] != nil && some("allOf") != len(s["allOf"].([]any)) {
		return false
	}
	if c, ok := s["const"]; ok && !same(c, v) {
		return false
	}
	if list, ok := s["enum"].([]any); ok && !slices.ContainsFunc(list, func(x any) bool { return same(x, v) }) {
		return false
	}
	if t, ok := s["type"]; ok {
		list, ok := t.([]any)
		if !ok {
			list = []any{t}
		}
		if !slices.ContainsFunc(list, func(t any) bool { return isOf(t.(string), v) }) {
			return false
		}
	}
	count := func(n int, least, most string) bool {
		a, okA := s[least].(json.Number)
		b, okB := s[most].(json.Number)
		return (!okA || rat(a).Cmp(big.NewRat(int64(n), 1)) <= 0) && (!okB || rat(b).Cmp(big.NewRat(int64(n), 1)) >= 0)
	}
	switch v := v.(type) {
	case string:
		return count(utf8.RuneCountInString(v), "minLength", "maxLength") && matches(s["pattern"], v) && formatted(s["format"], v)
	case json.Number:
		for key, ok := range map[string]func(int) bool{
			"minimum": func(c int) bool { return c >= 0 }, "exclusiveMinimum": func(c int) bool { return c > 0 },
			"maximum": func(c int) bool { return c <= 0 }, "exclusiveMaximum": func(c int) bool { return c < 0 },
		} {
			if bound, is := s[key].(json.Number); is && !ok(rat(v).Cmp(rat(bound))) {
				return false
			}
		}
		if of, is := s["multipleOf"].(json.Number); is && !new(big.Rat).Quo(rat(v), rat(of)).IsInt() {
			return false
		}
	case []any:
		for i := range v {
			if s["uniqueItems"] == true && slices.ContainsFunc(v[:i], func(x any) bool { return same(x, v[i]) }) {
				return false
			}
		}
		before, _ := s["prefixItems"].([]any)
		for i, x := range v {
			of, ok := s["items"]
			if !ok {
				of = true
			}
			if i < len(before) {
				of = before[i]
			}
			if !valid(root, of, x) {
				return false
			}
		}
		return count(len(v), "minItems", "maxItems")
	case map[string]any:
		required, _ := s["required"].([]any)
		for _, k := range required {
			if _, ok := v[k.(string)]; !ok {
				return false
			}
		}
		properties, _ := s["properties"].(map[string]any)
		for k, x := range v {
			of, ok := properties[k]
			if !ok {
				if of, ok = s["additionalProperties"]; !ok {
					of = true
				}
			}
			if !valid(root, of, x) {
				return false
			}
		}
	}
	return true
}

func rat(n json.Number) *big.Rat {
	x, ok := new(big.Rat).SetString(n.String())
	if !ok {
		panic(n)
	}
	return x
}

func isOf(t string, v any) bool {
	switch v := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case string:
		return t == "string"
	case json.Number:
		return t == "number" || t == "integer" && rat(v).IsInt()
	case []any:
		return t == "array"
	}
	return t == "object"
}

func same(a, b any) bool {
	x, ok := a.(json.Number)
	y, ok2 := b.(json.Number)
	if ok && ok2 {
		return rat(x).Cmp(rat(y)) == 0
	}
	p, _ := json.Marshal(a)
	q, _ := json.Marshal(b)
	return bytes.Equal(p, q)
}

func decode(t testing.TB, text string) any {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v), text)
	require.False(t, dec.More(), text)
	return v
}

// accepts reports whether a text, read in one go, is in the language.
func accepts(t testing.TB, g *Grammar, text string) bool {
	s, err := g.Bytes(bg, nil, g.Start(), []byte(text))
	require.NoError(t, err)
	return s.MayEnd()
}

func compileSchema(t testing.TB, schema string, strict bool) *Grammar {
	g, err := Compile(bg, letters(), Schema([]byte(schema), strict))
	require.NoError(t, err, schema)
	return g
}

// write draws a text of the language, token by token of the mask, until it may end and a
// coin says so, or nothing else can come. Long texts prefer closing tokens.
func write(t testing.TB, g *Grammar, rng *rand.Rand) (string, bool) {
	var text []byte
	s := g.Start()
	for n := 0; ; n++ {
		mask, some, err := g.Mask(bg, nil, s)
		require.NoError(t, err)
		if s.MayEnd() && (!some || rng.IntN(3) == 0) {
			return string(text), true
		}
		require.True(t, some, "stuck behind %q", text)
		if n > 300 {
			return "", false
		}
		var may, closing []int32
		for id := range int32(g.v.size) {
			if mask[id>>6]>>(id&63)&1 == 0 {
				continue
			}
			may = append(may, id)
			if b := g.v.bytes[id]; n > 40 && (strings.Contains("\"]}:,0\x80\xbf", string(b)) || b[0] == '"' || b[0] == '}') {
				closing = append(closing, id)
			}
		}
		if len(closing) > 0 && rng.IntN(4) > 0 {
			may = closing
		}
		id := may[rng.IntN(len(may))]
		text = append(text, g.v.bytes[id]...)
		s, err = g.Token(bg, nil, s, id)
		require.NoError(t, err)
		require.NotNil(t, s, "%q", text)
	}
}

var schemas1 = []string{
	`true`, `{}`, `{"type":"null"}`, `{"type":"boolean"}`,
	`{"type":"string"}`, `{"type":"string","minLength":2,"maxLength":5}`, `{"type":"string","maxLength":0}`,
	`{"type":"string","pattern":"^a+b?$"}`, `{"type":"string","pattern":"a|^b$","minLength":1,"maxLength":4}`, `{"pattern":"[^a-y]é"}`, `{"type":"string","format":"date"}`,
	`{"type":"object","properties":{"when":{"format":"date-time","type":"string"},"who":{"type":["string","null"],"format":"email"}},"required":["when","who"],"additionalProperties":false}`,
	`{"type":"integer"}`, `{"type":"number"}`, `{"type":["string","null","integer"]}`,
	`{"type":"integer","minimum":-17,"maximum":423}`, `{"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":11}`,
	`{"type":"integer","minimum":98}`, `{"type":"integer","maximum":-3}`, `{"type":"integer","minimum":0.5,"maximum":2.5}`,
	`{"type":"number","minimum":-1.25,"exclusiveMaximum":30.5}`, `{"type":"number","exclusiveMinimum":0,"maximum":0.01}`, `{"type":"number","minimum":12345678901234567890123}`,
	`{"enum":["a","ab","\"",null,1,2.5,[1,{"k":[]}]]}`, `{"type":"string","enum":["x",3]}`, `{"const":{"a":[true]}}`,
	`{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}`, `{"type":"array"}`, `{"type":"array","maxItems":0}`, `{"type":"array","items":false}`,
	`{"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],"items":{"type":"boolean"},"minItems":1}`,
	`{"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],"items":false,"minItems":2}`,
	`{"type":"object"}`, `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false}`,
	`{"type":"object","properties":{"name":{"type":"integer"},"né":{"type":"null"},"n\"m":{"type":"null"},"":{"type":"null"}}}`,
	`{"type":"object","properties":{"a":true},"required":["a","z"],"additionalProperties":{"type":"integer"}}`,
	`{"type":"object","additionalProperties":{"type":"array","items":{"type":"boolean"}}}`,
	`{"anyOf":[{"type":"integer"},{"type":"object","properties":{"x":{"const":1}},"required":["x"]},{"type":"integer","minimum":4}]}`,
	`{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"v":{"type":"null"}},"required":["kind"]},{"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]}]}`,
	`{"$defs":{"Cat":{"type":"object","properties":{"kind":{"const":"cat","type":"string"},"v":{"type":"null"}},"required":["kind"]},"Dog":{"type":"object","properties":{"kind":{"const":"dog","type":"string"}},"required":["kind"]}},"discriminator":{"mapping":{"cat":"#/$defs/Cat","dog":"#/$defs/Dog"},"propertyName":"kind"},"oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}]}`,
	`{"oneOf":[{"$ref":"#/definitions/x"},{"type":"null"},{"$ref":"#/definitions/y"}],"definitions":{"x":{"type":"boolean"},"y":{"type":"string","enum":["a","b"]}}}`,
	`{"allOf":[{"$ref":"#/$defs/x"}],"$defs":{"x":{"type":"boolean","title":"t"}}}`,
	`{"$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v","kids"],"additionalProperties":false}},"$ref":"#/$defs/tree"}`,
	`{"type":["object","null"],"properties":{"next":{"$ref":"#"}},"required":["next"],"additionalProperties":false}`,
}

// TestWhatIsWrittenIsValid: every text that the masks allow is JSON that an
// independent judge finds valid.
func TestWhatIsWrittenIsValid(t *testing.T) {
	for i, schema := range schemas1 {
		for _, strict := range []bool{false, true} {
			g := compileSchema(t, schema, strict)
			root := decode(t, schema)
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			done := 0
			for range 30 {
				text, ok := write(t, g, rng)
				if !ok {
					continue
				}
				done++
				require.True(t, utf8.ValidString(text), "%q", text)
				require.True(t, valid(root, root, decode(t, text)), "%s wrote %s", schema, text)
			}
			require.Greater(t, done, 5, schema)
		}
	}
}

// maker makes schemas and values of them, independently of the grammar.
type maker struct {
	*rand.Rand
	defs []string
}

func (m *maker) pick(list ...string) string { return list[m.IntN(len(list))] }

// space returns white space that the grammar accepts.
func (m *maker) space() string { return m.pick("", "", " ", "\n", "\n  ") }

func (m *maker) str(least, most int) string {
	n := least + m.IntN(most-least+1)
	var b strings.Builder
	for range n {
		b.WriteString(m.pick("a", "Z", " ", "é", "日", "🙂", `\n`, `\"`, `\\`, `\/`, `\u00e9`, `\ud83d\ude00`, `\uFFFD`, "/", "\x7f"))
	}
	return `"` + b.String() + `"`
}

// schema returns a schema and a function that writes values of it.
func (m *maker) schema(depth int) (string, func() string) {
	kinds := 6
	if depth > 0 {
		kinds = 10
	}
	switch m.IntN(kinds) {
	case 0:
		return `{"type":"boolean"}`, func() string { return m.pick("true", "false") }
	case 1:
		least := m.IntN(4)
		most := least + m.IntN(5)
		return fmt.Sprintf(`{"type":"string","minLength":%d,"maxLength":%d}`, least, most), func() string { return m.str(least, most) }
	case 2:
		least := m.IntN(3000) - 1500
		most := least + m.IntN(2000)
		return fmt.Sprintf(`{"type":"integer","minimum":%d,"exclusiveMaximum":%d}`, least, most+1), func() string { return fmt.Sprint(least + m.IntN(most-least+1)) }
	case 3:
		least := m.IntN(3000) - 1500
		most := least + 1 + m.IntN(2000)
		return fmt.Sprintf(`{"type":"number","minimum":%d.%02d,"maximum":%d.%02d}`, least/100, abs(least%100), most/100, abs(most%100)), func() string {
			lo, hi := decimal(least), decimal(most)
			for {
				x := decimal(least + m.IntN(most-least+1))
				if x.Cmp(lo) >= 0 && x.Cmp(hi) <= 0 && x.Sign() != 0 {
					return x.FloatString(2 + m.IntN(3))
				} else if x.Sign() == 0 && lo.Cmp(x) <= 0 && hi.Cmp(x) >= 0 {
					return "0.00"
				}
			}
		}
	case 4:
		return `{"enum":["one","two",3,null]}`, func() string { return m.pick(`"one"`, `"two"`, "3", "null") }
	case 5:
		return `{"type":["string","null"]}`, func() string {
			if m.IntN(2) == 0 {
				return "null"
			}
			return m.str(0, 20)
		}
	case 6:
		item, make := m.schema(depth - 1)
		least := m.IntN(3)
		most := least + m.IntN(3)
		return fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":%d}`, item, least, most), func() string {
			var list []string
			for range least + m.IntN(most-least+1) {
				list = append(list, m.space()+make())
			}
			return "[" + strings.Join(list, ",") + m.space() + "]"
		}
	case 7:
		a, makeA := m.schema(depth - 1)
		b, makeB := m.schema(depth - 1)
		return fmt.Sprintf(`{"anyOf":[%s,%s]}`, a, b), func() string {
			if m.IntN(2) == 0 {
				return makeA()
			}
			return makeB()
		}
	case 8:
		s, make := m.schema(depth - 1)
		m.defs = append(m.defs, s)
		return fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, len(m.defs)-1), make
	}
	type property struct {
		name     string
		required bool
		make     func() string
	}
	var list []property
	var parts, required []string
	for i := range m.IntN(4) {
		s, make := m.schema(depth - 1)
		p := property{fmt.Sprintf("%s%d", m.pick("p", "ä", "a b", `q\"`), i), m.IntN(2) == 0, make}
		list = append(list, p)
		parts = append(parts, fmt.Sprintf(`"%s":%s`, p.name, s))
		if p.required {
			required = append(required, `"`+p.name+`"`)
		}
	}
	more := m.IntN(2) == 0
	return fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":%v}`, strings.Join(parts, ","), strings.Join(required, ","), more), func() string {
		var out []string
		add := func(name, value string) {
			out = append(out, m.space()+`"`+name+`":`+m.pick("", " ")+value)
		}
		for _, p := range list {
			if p.required || m.IntN(2) == 0 {
				add(p.name, p.make())
			}
		}
		if more && m.IntN(2) == 0 {
			add(m.pick("x", "pp", `é\n`, "q", "ö"), m.pick("1", "[]", `{"k": [null]}`, "-2.5e+10"))
		}
		return "{" + strings.Join(out, ",") + m.space() + "}"
	}
}

func abs(x int) int { return max(x, -x) }

// decimal returns the value of "%d.%02d" of n/100 and n%100.
func decimal(n int) *big.Rat {
	x := big.NewRat(int64(n), 100)
	if n < 0 && n > -100 {
		x.Neg(x) // it has lost its sign
	}
	return x
}

// TestValidValuesAreRead: values that a generator makes for its own schemas are
// accepted, however they are cut into tokens, and the masks agree.
func TestValidValuesAreRead(t *testing.T) {
	for seed := range uint64(150) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 2))}
		body, make := m.schema(3)
		if body[0] != '{' || decimalOrder(body) {
			continue
		}
		var defs []string
		for i, d := range m.defs {
			defs = append(defs, fmt.Sprintf(`"d%d":%s`, i, d))
		}
		schema := `{"$defs":{` + strings.Join(defs, ",") + `},` + body[1:]
		g := compileSchema(t, schema, false)
		root := decode(t, schema)
		for range 8 {
			text := make()
			require.True(t, valid(root, root, decode(t, text)), "the generator: %s of %s", text, schema)
			s := g.Start()
			for rest := []byte(text); len(rest) > 0; {
				mask, _, err := g.Mask(bg, nil, s)
				require.NoError(t, err)
				var fit []int32
				for id, b := range g.v.bytes {
					if len(b) > 0 && bytes.HasPrefix(rest, b) {
						next, err := g.Token(bg, nil, s, int32(id))
						require.NoError(t, err)
						require.Equal(t, next != nil, mask[id>>6]>>(id&63)&1 == 1, "mask of %q before %q", b, rest)
						if next != nil {
							fit = append(fit, int32(id))
						}
					}
				}
				require.NotEmpty(t, fit, "%s refuses %s at %q", schema, text, rest)
				id := fit[m.IntN(len(fit))]
				rest = rest[len(g.v.bytes[id]):]
				s, err = g.Token(bg, nil, s, id)
				require.NoError(t, err)
			}
			require.True(t, s.MayEnd(), "%s of %s", text, schema)
		}
	}
}

// decimalOrder reports whether bounds are the wrong way round: those between -1 and 0
// lose their sign above.
func decimalOrder(schema string) bool {
	for _, m := range regexp.MustCompile(`"minimum":(-?[\d.]+),"maximum":(-?[\d.]+)`).FindAllStringSubmatch(schema, -1) {
		if rat(json.Number(m[1])).Cmp(rat(json.Number(m[2]))) > 0 {
			return true
		}
	}
	return false
}

// TestMaskIsExact: in random places, the mask agrees with reading each token.
func TestMaskIsExact(t *testing.T) {
	for i, schema := range schemas1 {
		g := compileSchema(t, schema, i%2 == 0)
		rng := rand.New(rand.NewPCG(uint64(i), 3))
		s := g.Start()
		for range 60 {
			mask, some, err := g.Mask(bg, nil, s)
			require.NoError(t, err)
			var may []int32
			for id := range int32(g.v.size) {
				next, err := g.Token(bg, nil, s, id)
				require.NoError(t, err)
				require.Equal(t, next != nil, mask[id>>6]>>(id&63)&1 == 1, "%s: %q", schema, g.v.bytes[id])
				if next != nil {
					may = append(may, id)
				}
			}
			require.Equal(t, len(may) > 0, some)
			if len(may) == 0 {
				require.True(t, s.MayEnd())
				break
			}
			s, err = g.Token(bg, nil, s, may[rng.IntN(len(may))])
			require.NoError(t, err)
		}
	}
}

func TestExamples(t *testing.T) {
	for _, test := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false}`,
			[]string{`{"a":1}`, `{"a": -12, "b": "x"}`, "{\n  \"a\": 0\n}"}, []string{`{}`, `{"b":"x","a":1}`, `{"a":01}`, `{"a":1,}`, `{"a":1`, `{"a":"1"}`, `{"a":1,"c":2}`, `{"a":-0}`, `{  "a":1}`, `{"a":1 ,"b":""}`, `{"a" :1}`}},
		{`{"type":"object","properties":{"name":{"type":"integer"}}}`,
			[]string{`{}`, `{"names":1}`, `{"nam":[]}`, `{"x":1,"é":2}`, `{"name":1,"Name":{}}`}, []string{`{"name":""}`, `{"x":1,"name":2}`, `{"\u006eame":""}`, `{"n\u0061me":""}`}},
		// Escapes in other names, behind what they share with a declared one.
		{`{"properties":{"a":{"type":"null"},"b\\c":{"type":"null"},"b\u0008":{"type":"null"},"b\t":{"type":"null"}},"type":"object"}`,
			[]string{`{"a\"":1}`, `{"\\":1,"\na":1}`, `{"b\"":1,"b\\d":1,"b\\\"":1,"b\r":1,"b\tx":1}`, `{"a":null,"b\\c":null,"b\t":null}`},
			[]string{`{"\u0061":1}`, `{"b\\c":1}`, `{"b\t":1}`, `{"b\b":1}`, `{"b\u0008":1}`, `{"b\u0009":1}`, `{"b\u005cc":1}`, `{"a\":1}`}},
		{`{"type":"number","minimum":0.5,"exclusiveMaximum":12}`, []string{"0.5", "0.50", "1", "11.999", "9.1"}, []string{"0.4", "0.49", "0", "12", "12.0", "1e1", "-1", "100", "0.", ".6", "00.6"}},
		{`{"type":"string","minLength":1,"maxLength":2}`, []string{`"a"`, `"\ud83d\ude00é"`}, []string{`""`, `"abc"`, `"\ud83d"`, `"\ude00"`, "\"\n\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", `"\x"`}},
		{`{"title":"x"}`, []string{"1", `{"a":{"b":[]}}`}, []string{"x"}},
		{`{"type":"number"}`, []string{"1e5", "-0.5E-10", "0"}, []string{"01", "1e", "1.", "+1", "NaN"}},
		{`{"type":"integer","maximum":-10}`, []string{"-10", "-11", "-999"}, []string{"-9", "10", "0"}},
	} {
		g := compileSchema(t, test.schema, false)
		for _, text := range test.yes {
			require.True(t, accepts(t, g, text), "%s: %s", test.schema, text)
		}
		for _, text := range test.no {
			require.False(t, accepts(t, g, text), "%s: %s", test.schema, text)
		}
	}
}

// TestRefused: errors name what is not enforced.
func TestRefused(t *testing.T) {
	v := letters()
	deep := strings.Repeat(`{"type":"array","items":`, 101) + "true" + strings.Repeat("}", 101)
	for schema, want := range map[string]string{
		`{"type":"string","pattern":1}`:                                             `#/pattern: found`,
		`{"type":"string","pattern":"a","format":"date"}`:                           `"format" is not supported beside "pattern"`,
		`{"type":"string","pattern":"^a{3}$","maxLength":2}`:                        "nothing satisfies",
		`{"type":"string","pattern":"a^"}`:                                          "nothing satisfies",
		`{"type":"string","pattern":"[]"}`:                                          "nothing satisfies",
		`{"properties":{"x":{"not":{}}}}`:                                           `#/properties/x: the keyword "not"`,
		`{"if":true}`:                                                               `"if"`,
		`{"type":"integer","multipleOf":0}`:                                         "#/multipleOf: found 0",
		`{"type":"integer","multipleOf":"2"}`:                                       "#/multipleOf: found",
		`{"type":"integer","multipleOf":101}`:                                       "at most 100",
		`{"type":"integer","multipleOf":2,"minimum":3}`:                             "#/multipleOf: not supported beside a single bound",
		`{"type":"integer","multipleOf":2,"maximum":3}`:                             "#/multipleOf: not supported beside a single bound",
		`{"type":"number","multipleOf":1,"minimum":0,"maximum":1001}`:               "more than 1000 multiples",
		`{"multipleOf":7,"type":"integer","minimum":1,"maximum":6}`:                 "nothing satisfies",
		`{"type":"array","uniqueItems":1}`:                                          "#/uniqueItems: found",
		`{"type":"array","uniqueItems":true,"items":{"enum":[1,1.0]},"minItems":2}`: "nothing satisfies",
		`{"patternProperties":{}}`:                                                  `"patternProperties"`,
		`{"anyOf":[true],"type":"string"}`:                                          `"type" is not supported beside "anyOf"`,
		`{"enum":[1],"minimum":3}`:                                                  `"minimum" is not supported beside "enum"`,
		`{"allOf":[true,true]}`:                                                     `"allOf"`,
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:                          `"oneOf"`,
		`{"$ref":"http://example.com/"}`:                                            `$ref`,
		`{"$ref":"#/nowhere"}`:                                                      `nothing is at "#/nowhere"`,
		`{"$ref":"#"}`:                                                              "refers to itself",
		`{"anyOf":[{"type":"null"},{"$ref":"#"}]}`:                                  "refers to itself",
		`{"properties":{"a":{"$ref":"#"}},"required":["a"],"type":"object"}`:        "nothing satisfies",
		`false`: "nothing satisfies", `{"enum":[]}`: "nothing satisfies", `{"type":"integer","minimum":3,"maximum":2}`: "nothing satisfies",
		`{"type":"array","minItems":1,"items":false}`: "nothing satisfies", `{"type":"object","required":["a"],"additionalProperties":false}`: "nothing satisfies",
		`{"type":"strin"}`: "#/type", `{"type":[]}`: "#/type", `{"minLength":-1}`: "minLength", `{"maxItems":1e99}`: "maxItems", `{"minimum":1e999999}`: "minimum",
		`[]`: "expected an object", `{"a":1,"a":2}`: "twice", `{`: "found the end of the text", `{} x`: "after the value, expected the end", deep: "nested more than 100 deep",
		`{"enum":["` + strings.Repeat("x", 70000) + `"]}`:                                                        "65536",
		`{"type":"object","properties":{"` + strings.Repeat("x", 70000) + `":true},"additionalProperties":true}`: "65536",
	} {
		_, err := Compile(bg, v, Schema([]byte(schema), true))
		require.ErrorContains(t, err, want, "%.100s", schema)
	}
}

// TestEqualConstants: a value written in different ways is one value.
func TestEqualConstants(t *testing.T) {
	for _, same := range []string{`{"const":1},{"const":1.0}`, `{"enum":[1,20]},{"enum":[0.2e+2,3]}`, `{"const":{"a":1,"b":[-0]}},{"const":{"b":[0.00],"a":10e-1}}`} {
		_, err := Compile(bg, letters(), Schema([]byte(`{"oneOf":[`+same+`]}`), true))
		require.ErrorContains(t, err, `"oneOf"`, same)
	}
	for schema, text := range map[string]string{
		`{"oneOf":[{"const":1},{"const":-1},{"const":10},{"const":0.1},{"const":"1e0"},{"const":1e99999999999999999999}]}`: "-1",
		`{"type":"integer","enum":[1.0,2.5]}`: "1.0", `{"type":"integer","const":12e1}`: "12e1",
	} {
		g := compileSchema(t, schema, true)
		require.True(t, accepts(t, g, text), "%s: %s", schema, text)
		require.False(t, accepts(t, g, "2.5"), schema)
	}
}

// TestTinyBound: a bound with a large exponent is refused before it is computed.
func TestTinyBound(t *testing.T) {
	allocated := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			_, err := Compile(bg, letters(), Schema([]byte(`{"type":"number","minimum":1e-999999}`), true))
			require.ErrorContains(b, err, "#/minimum: found 1e-999999")
		}
	}).AllocedBytesPerOp()
	require.Less(t, allocated, int64(1<<20))
}

// TestApartIsBounded: telling schemas apart costs bounded work.
func TestApartIsBounded(t *testing.T) {
	var values, kinds []string
	for i := range 8000 {
		values = append(values, fmt.Sprint(i))
	}
	for i := range 40 {
		names, properties := `"kind"`, fmt.Sprintf(`"kind":{"const":%d}`, i)
		for k := range 30 {
			names, properties = fmt.Sprintf(`"p%d",%s`, k, names), fmt.Sprintf(`"p%d":{"$ref":"#/$defs/v"},%s`, k, properties)
		}
		kinds = append(kinds, `{"type":"object","properties":{`+properties+`},"required":[`+names+`]}`)
	}
	m, err := begin(bg, maxCompileWork, ErrBudget)
	require.NoError(t, err)
	defer m.end()
	c := newCompiler(m)
	r := c.begin(0, -1)
	_, err = Schema([]byte(`{"$defs":{"v":{"enum":[`+strings.Join(values, ",")+`]}},"oneOf":[`+strings.Join(kinds, ",")+`]}`), true).build(c, c.rules[r].start)
	require.ErrorContains(t, err, `"oneOf"`)
	require.Greater(t, c.compared, maxCompared, "otherwise nothing was bounded")
	require.Less(t, c.compared, maxCompared+1<<16)
}

// TestAmbiguous: a schema with too many ways to read one text gives an error.
func TestAmbiguous(t *testing.T) {
	var kinds []string
	for i := range 40 {
		kinds = append(kinds, fmt.Sprintf(`{"type":"array","items":{"$ref":"#"},"title":"%d"}`, i))
	}
	g := compileSchema(t, `{"anyOf":[`+strings.Join(kinds, ",")+`,{"type":"null"}]}`, true)
	s, err := g.Bytes(bg, nil, g.Start(), []byte("["))
	for err == nil {
		s, err = g.Bytes(bg, nil, s, []byte("["))
	}
	require.ErrorIs(t, err, ErrAmbiguous)

	// Many ways, and new ones with every byte: one mask has bounded work.
	var many []string
	for i := range 500 {
		many = append(many, fmt.Sprintf(`{"type":"string","maxLength":%d}`, 1000+i))
	}
	g = compileSchema(t, `{"anyOf":[`+strings.Join(many, ",")+`]}`, true)
	s, err = g.Bytes(bg, nil, g.Start(), []byte(`"`))
	for range 100 {
		require.NoError(t, err)
		if _, _, err = g.Mask(bg, nil, s); err == nil {
			s, err = g.Bytes(bg, nil, s, []byte("a"))
		}
		require.LessOrEqual(t, g.meter.done, maxWork+maxFrames)
		if err != nil {
			require.ErrorIs(t, err, ErrAmbiguous)
			return
		}
	}
}

// TestForgetting: what is remembered is bounded, and forgetting changes nothing.
func TestForgetting(t *testing.T) {
	g := compileSchema(t, `{"type":"array","items":{"type":"string","maxLength":20000}}`, true)
	s := g.Start()
	text := []byte(`["` + strings.Repeat("aé", 4000))
	for i := 0; i < len(text); i++ {
		var err error
		s, err = g.Bytes(bg, nil, s, text[i:i+1])
		require.NoError(t, err)
		require.NotNil(t, s)
		if i > 2 && text[i] == 'a' && i%6 == 2 {
			mask, _, err := g.Mask(bg, nil, s)
			require.NoError(t, err)
			require.NotZero(t, mask['x'>>6]>>('x'&63)&1)
		}
	}
	require.LessOrEqual(t, len(g.states), maxStates)
	require.LessOrEqual(t, len(g.masked), maxMasks)
	require.True(t, accepts(t, g, `["x", "y"]`))
}

// TestForgettingFrees: what was forgotten is not kept alive by what is remembered, nor
// by a state that somebody holds, and fewer states are remembered if they have many
// ways.
func TestForgettingFrees(t *testing.T) {
	for _, expr := range []string{`(?s).*[a-m].{40}`, `(?s).*[a-m].{900}`} {
		g, err := Compile(bg, letters(), Regexp(expr))
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(1, 9))
		s := g.Start()
		for range 60 {
			text := make([]byte, 100)
			for i := range text {
				text[i] = 'a' + byte(rng.IntN(26))
			}
			s, err = g.Bytes(bg, nil, s, text)
			require.NoError(t, err)
			_, _, err = g.Mask(bg, nil, s)
			require.NoError(t, err)
		}
		held, frames := map[*State]bool{}, 0
		todo := append(slices.Collect(maps.Values(g.states)), g.masked...)
		for todo = append(todo, g.start, s); len(todo) > 0; {
			x := todo[len(todo)-1]
			if todo = todo[:len(todo)-1]; x != nil && !held[x] {
				held[x] = true
				frames += len(x.frames)
				for _, next := range x.next {
					todo = append(todo, next.to)
				}
			}
		}
		require.LessOrEqual(t, len(held), maxStates+maxMasks, expr)
		require.LessOrEqual(t, frames, maxHeld+maxMasks*maxFrames, expr)
	}
}

func TestRegexp(t *testing.T) {
	v := letters()
	for _, expr := range []string{`a*b+`, `^(yes|no)$`, `[0-9]{2,3}-\d`, `(?i)straße`, `.é?[^a-y]`, `\pL+ \w`, ``, `[^x]`, `(a|b)*?c`} {
		g, err := Compile(bg, v, Regexp(expr))
		require.NoError(t, err, expr)
		judge := regexp.MustCompile(`^(?:` + expr + `)$`)
		rng := rand.New(rand.NewPCG(1, 4))
		for range 20 {
			if text, ok := write(t, g, rng); ok {
				require.True(t, judge.MatchString(text), "%s: %q", expr, text)
			}
		}
		for _, text := range []string{"", "b", "aab", "yes", "no", "yesno", "12-3", "123-4", "1-2", "STRASSE", "straße", "STRAßE", "xéz", "éé!", "\nz", "\x00z", "äß 1", "ab c", "\u2028", "🙂", "c", "abac"} {
			require.Equal(t, judge.MatchString(text), accepts(t, g, text), "%s: %q", expr, text)
		}
	}
	for _, expr := range []string{`(`, `a\b`, `x^`, `(a{1000}){1000}`} {
		_, err := Compile(bg, v, Regexp(expr))
		require.Error(t, err, expr)
	}
}

// TestMaskOfEveryByte: a mask has the first tokens of a vocabulary as well as the last.
func TestMaskOfEveryByte(t *testing.T) {
	g, err := Compile(bg, letters(), Regexp(`[\x00-\x7f]+`))
	require.NoError(t, err)
	mask, some, err := g.Mask(bg, nil, g.Start())
	require.NoError(t, err)
	require.True(t, some)
	for b := range 256 {
		require.Equal(t, b < 128, mask[b>>6]>>(b&63)&1 == 1, "%#x", b)
	}
}

func TestParts(t *testing.T) {
	g, err := Compile(bg, letters(), Repeat(Sequence(Text("<"), OneOf(Texts("a", "ab"), Schema([]byte(`{"type":"integer"}`), true)), Text(">")), Text(";")))
	require.NoError(t, err)
	for text, want := range map[string]bool{"<a>": true, "<ab>;<12>": true, "<a>;": false, "": false, "<b>": false, "<a><a>": false} {
		require.Equal(t, want, accepts(t, g, text), text)
	}
	_, err = Compile(bg, letters(), Texts())
	require.Error(t, err)
}

// FuzzSchema: no schema causes worse than an error, and what is written is valid.
func FuzzSchema(f *testing.F) {
	for _, s := range schemas1 {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, schema []byte, seed uint64) {
		defer testfuzz.Bound(t, len(schema))()
		if len(schema) > 4096 {
			return
		}
		g, err := Compile(bg, letters(), Schema(schema, seed%2 == 0))
		if err != nil || !utf8.Valid(schema) || bytes.Contains(schema, []byte("$ref")) {
			return
		}
		rng := rand.New(rand.NewPCG(seed, 5))
		var text []byte
		s := g.Start()
		for range 100 {
			mask, some, err := g.Mask(bg, nil, s)
			if err != nil {
				require.ErrorIs(t, err, ErrAmbiguous)
				return
			}
			if s.MayEnd() {
				require.True(t, valid(nil, decode(t, string(schema)), decode(t, string(text))), "%s", text)
			}
			if !some {
				require.True(t, s.MayEnd())
				return
			}
			id := int32(rng.IntN(g.v.size))
			for mask[id>>6]>>(id&63)&1 == 0 {
				id = (id + 1) % int32(g.v.size)
			}
			text = append(text, g.v.bytes[id]...)
			if s, err = g.Token(bg, nil, s, id); err != nil {
				require.ErrorIs(t, err, ErrAmbiguous)
				return
			}
		}
	})
}
