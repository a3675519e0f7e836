package grammar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMultiples: of all short texts, the grammar has those that are multiples, and what is
// written at random is one.
func TestMultiples(t *testing.T) {
	var texts []string
	for _, sign := range []string{"", "-"} {
		for n := range 130 {
			texts = append(texts, fmt.Sprint(sign, n))
			for f := range 100 {
				texts = append(texts, fmt.Sprintf("%s%d.%d", sign, n%12, f), fmt.Sprintf("%s%d.%02d", sign, n%12, f))
			}
		}
	}
	for _, schema := range []string{
		`{"type":"integer","multipleOf":1}`, `{"type":"integer","multipleOf":7}`, `{"type":"integer","multipleOf":10,"minimum":0}`,
		`{"type":"integer","multipleOf":2.5}`, `{"type":"number","multipleOf":0.5}`, `{"type":"number","multipleOf":0.05,"minimum":0}`,
		`{"type":"number","multipleOf":3}`, `{"type":"number","multipleOf":0.01}`, `{"type":"number","multipleOf":100}`,
		`{"type":"integer","multipleOf":3,"minimum":-10,"maximum":9}`, `{"type":"integer","multipleOf":3,"exclusiveMinimum":-9,"exclusiveMaximum":9}`,
		`{"type":"number","multipleOf":0.25,"minimum":-1.1,"maximum":2}`, `{"multipleOf":5,"type":["integer","null"]}`,
	} {
		g := compileSchema(t, schema, false)
		root := decode(t, schema)
		digits := 0
		if m := root.(map[string]any)["multipleOf"].(json.Number).String(); strings.Contains(m, ".") && !strings.Contains(schema, "integer") {
			digits = len(m) - strings.Index(m, ".") - 1
		}
		listed := strings.Contains(schema, "aximum") // each value is written in one way
		for _, text := range texts {
			whole, fraction, _ := strings.Cut(text, ".")
			if strings.Trim(text, "-0.") == "" && text != "0" || listed && strings.HasSuffix(fraction, "0") {
				continue // negative zeros and other ways of writing a number may be left out
			}
			want := valid(root, root, json.Number(text)) && len(fraction) <= digits
			require.Equal(t, want, accepts(t, g, text), "%s: %s (%s)", schema, text, whole)
		}
		for seed := range uint64(30) {
			if text, ok := write(t, g, rand.New(rand.NewPCG(seed, 1))); ok {
				require.True(t, valid(root, root, decode(t, text)), "%s: %s", schema, text)
			}
		}
	}
}

// TestUniqueItems: constants come once each, in any order, as many as may come; where nothing
// can be enforced, strict schemas are refused.
func TestUniqueItems(t *testing.T) {
	for _, test := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"type":"array","uniqueItems":true,"items":{"enum":["a","b","c"]}}`, []string{`[]`, `["b"]`, `["c","a","b"]`, `["a", "b"]`}, []string{`["a","a"]`, `["a","b","a"]`, `["d"]`, `[`, `["a",]`}},
		{`{"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/x"},"minItems":2,"maxItems":2,"$defs":{"x":{"enum":["a","b","c"]}}}`, []string{`["b","a"]`}, []string{`[]`, `["a"]`, `["a","b","c"]`, `["b","b"]`}},
		{`{"type":"array","uniqueItems":true,"items":{"enum":[1,2,"x"],"type":"integer"},"minItems":1}`, []string{`[2,1]`, `[1]`}, []string{`["x"]`, `[]`, `[1,1]`}},
		{`{"type":"array","uniqueItems":true,"items":{"type":"integer"},"maxItems":1}`, []string{`[]`, `[5]`}, []string{`[5,5]`}},
		{`{"type":"array","uniqueItems":false,"items":{"enum":[1]}}`, []string{`[1,1]`}, nil},
		{`{"type":"array","uniqueItems":true,"items":{"type":"string"}}`, []string{`["a","a"]`}, nil}, // an annotation
	} {
		g := compileSchema(t, test.schema, false)
		root := decode(t, test.schema)
		for _, text := range test.yes {
			require.True(t, accepts(t, g, text), "%s: %s", test.schema, text)
		}
		for _, text := range test.no {
			require.False(t, accepts(t, g, text), "%s: %s", test.schema, text)
		}
		if test.no != nil {
			for seed := range uint64(30) {
				if text, ok := write(t, g, rand.New(rand.NewPCG(seed, 2))); ok {
					require.True(t, valid(root, root, decode(t, text)), "%s: %s", test.schema, text)
				}
			}
		}
	}
	for schema, ok := range map[string]bool{
		`{"type":"array","uniqueItems":true,"items":{"enum":[1,2]}}`: true, `{"type":"array","uniqueItems":true,"maxItems":1}`: true,
		`{"type":"array","uniqueItems":true}`: false, `{"type":"array","uniqueItems":true,"items":{"enum":[1,2,3,4,5,6,7,8,9]}}`: false,
		`{"type":"array","uniqueItems":true,"prefixItems":[{"enum":[1]}],"items":{"enum":[1]}}`: false,
	} {
		_, err := Compile(bg, letters(), Schema([]byte(schema), true))
		require.Equal(t, ok, err == nil, "%s: %v", schema, err)
	}
}
