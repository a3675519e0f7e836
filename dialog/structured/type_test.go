package structured

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/model"
)

type inner struct {
	X int8 `json:"x" jsonschema:"minimum=1"`
}

type Embedded struct {
	Shared string
	Twice  int `json:"twice"`
}

type everything struct {
	Embedded
	inner   `json:"named"`
	Kind    string            `json:"kind" jsonschema:"enum=bug,enum=a\\,b,description=The <kind>\\, in a word."`
	Tags    []string          `json:"tags,omitempty" jsonschema:"enum=x,enum=y,maxItems=3"`
	Pair    [2]float64        `json:"pair"`
	Twice   bool              `json:"twice"`
	Maybe   *inner            `json:"maybe"`
	Absent  *inner            `json:"absent,omitzero"`
	When    time.Time         `json:"when"`
	Data    []byte            `json:"data"`
	Any     any               `json:"any"`
	Raw     json.RawMessage   `json:"raw"`
	Counts  map[string]uint64 `json:"counts"`
	Dropped chan int          `json:"-"`
	_       chan int
}

type list struct {
	Value int16 `json:"value"`
	Next  *list `json:"next"`
}

func TestSchemaOf(t *testing.T) {
	schema, err := SchemaOf[everything]()
	require.NoError(t, err)
	in := func(keywords string) string {
		return `{"type":"object","properties":{"x":{"type":"integer","maximum":127,"minimum":1}},"required":["x"],"additionalProperties":false}` + keywords
	}
	want := `{"type":"object","properties":{"Shared":{"type":"string"},"named":` + in("") + `,` +
		`"kind":{"type":"string","description":"The <kind>, in a word.","enum":["bug","a,b"]},"tags":{"type":"array","maxItems":3,"items":{"type":"string","enum":["x","y"]}},` +
		`"pair":{"type":"array","minItems":2,"maxItems":2,"items":{"type":"number"}},"twice":{"type":"boolean"},"maybe":{"anyOf":[` + in("") + `,{"type":"null"}]},"absent":` + in("") +
		`,"when":{"type":"string","format":"date-time"},"data":{"type":"string",` + base64Pattern + `},"any":{},"raw":{},` +
		`"counts":{"type":"object","additionalProperties":{"type":"integer","maximum":18446744073709551615,"minimum":0}}},` +
		`"required":["Shared","named","kind","pair","twice","maybe","when","data","any","raw","counts"],"additionalProperties":false}`
	require.Equal(t, want, string(schema))

	schema, err = SchemaOf[list]()
	require.NoError(t, err)
	require.Equal(t, `{"$ref":"#/$defs/type1","$defs":{"type1":{"type":"object","properties":{"value":{"type":"integer","maximum":32767,"minimum":-32768},`+
		`"next":{"anyOf":[{"$ref":"#/$defs/type1"},{"type":"null"}]}},"required":["value","next"],"additionalProperties":false}}}`, string(schema))
}

// TestTypesWithoutSchema: what cannot be told beforehand is an error that names the field.
func TestTypesWithoutSchema(t *testing.T) {
	for _, test := range []struct {
		schema func() ([]byte, error)
		want   string
	}{
		{SchemaOf[struct{ C chan int }], "field C: chan int"},
		{SchemaOf[map[int]string], "map[int]string"},
		{SchemaOf[struct {
			N int `json:"n,string"`
		}], "field N: the option string"},
		{SchemaOf[struct {
			A int `json:"B"`
			B int
		}], `another one is called "B"`},
		{SchemaOf[struct {
			A int `jsonschema:"least=3"`
		}], `found the key "least"`},
		{SchemaOf[struct {
			A int `jsonschema:"minimum=few"`
		}], "expected a number"},
		{SchemaOf[[]big.Int], "big.Int has an UnmarshalJSON"},
	} {
		_, err := test.schema()
		require.ErrorContains(t, err, test.want)
	}
	c, _ := family(t, showsTools, "</s>")
	_, err := c.Plan(t.Context(), Output{Format: Type[chan int]()}, &model.Sampling{}, 1)
	var format *FormatError
	require.ErrorAs(t, err, &format)
	require.ErrorContains(t, err, "chan int")
}

// follows reports whether a text is one of a format, and whether it is the beginning of one.
func follows(t *testing.T, c *Compiler, f Format, text string) (whole, begins bool) {
	g, err := c.grammar(t.Context(), f)
	require.NoError(t, err)
	s, err := g.Bytes(t.Context(), grammar.NewBudget(1), g.Start(), []byte(text))
	require.NoError(t, err)
	return s.MayEnd(), s != nil
}

// TestTypeFollowsJSON: what encoding/json writes of a value is a text of its type's format, and
// what it would not read is none.
func TestTypeFollowsJSON(t *testing.T) {
	c, _ := family(t, showsTools, "</s>")
	at := time.Date(2024, 7, 26, 12, 0, 0, 0, time.UTC)
	v := everything{Embedded: Embedded{Shared: "s"}, inner: inner{5}, Kind: "a,b", Tags: []string{"y"}, Maybe: &inner{127}, When: at, Data: []byte("ab"), Raw: json.RawMessage(`[1]`), Counts: map[string]uint64{"k": 1<<64 - 1}}
	for _, data := range [][]byte{[]byte(mustJSON(t, v)), []byte(mustJSON(t, everything{inner: inner{1}, Kind: "bug", Data: []byte{}, Raw: json.RawMessage("1"), Counts: map[string]uint64{}}))} {
		whole, _ := follows(t, c, Type[everything](), string(data))
		require.True(t, whole, "%s", data)
	}
	good := mustJSON(t, v)
	for from, to := range map[string]string{`"a,b"`: `"other"`, `"x":127`: `"x":128`, `18446744073709551615`: `18446744073709551616`, `"YWI="`: `"YWI"`, `["y"]`: `["z"]`, `"twice":false`: `"twice":0`} {
		require.Contains(t, good, from)
		_, begins := follows(t, c, Type[everything](), strings.Replace(good, from, to, 1))
		require.False(t, begins, to)
	}
	for text, want := range map[string]bool{`{"value":1,"next":{"value":2,"next":null}}`: true, `{"value":1,"next":{"value":2}}`: false} {
		whole, _ := follows(t, c, Type[list](), text)
		require.Equal(t, want, whole, text)
	}
}

func mustJSON(t *testing.T, v any) string {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
