package grammar

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// follows reports whether a text, which may break off, follows a schema.
func follows(t *testing.T, schema, text string) bool {
	g := compileSchema(t, schema, false)
	s, err := g.Bytes(bg, nil, g.Start(), []byte(text))
	require.NoError(t, err)
	return s != nil && s.MayEnd()
}

// What pydantic and older drafts write beside what is enforced: unknown formats and contents
// are annotations, ids are names, exclusive bounds may be marks on the others.
func TestOtherDialects(t *testing.T) {
	for _, test := range []struct {
		schema, text string
		want         bool
	}{
		{`{"type":"string","format":"binary"}`, `"any \" text"`, true},
		{`{"type":"string","format":"path"}`, `"/a b"`, true},
		{`{"type":"string","format":"json-string","contentMediaType":"application/json","contentSchema":{"type":"integer"}}`, `"x"`, true},
		{`{"type":"string","format":"password","writeOnly":true,"minLength":3}`, `"ab"`, false},
		{`{"type":"string","format":"base64url","pattern":"^[a-z]+$"}`, `"ab"`, true},
		{`{"type":"string","format":"base64url","pattern":"^[a-z]+$"}`, `"aB"`, false},
		{`{"type":"string","format":"ipv6"}`, `"::1"`, true},
		{`{"type":"string","format":"ipv6"}`, `"1.2.3.4"`, false},
		{`{"type":"string","format":"duration"}`, `"PT1H"`, true},
		{`{"id":"http://a.example/s","type":"integer"}`, `5`, true},
		{`{"type":"object","properties":{"id":{"id":"#b","type":"integer"}},"required":["id"],"additionalProperties":false}`, `{"id":5}`, true},
		{`{"type":"object","properties":{"id":{"id":"#b","type":"integer"}},"required":["id"],"additionalProperties":false}`, `{"id":"x"}`, false},
		{`{"type":"integer","minimum":1,"exclusiveMinimum":true}`, `1`, false},
		{`{"type":"integer","minimum":1,"exclusiveMinimum":true}`, `2`, true},
		{`{"type":"integer","minimum":1,"exclusiveMinimum":false}`, `1`, true},
		{`{"type":"integer","minimum":1,"maximum":3,"exclusiveMaximum":true}`, `3`, false},
		{`{"type":"integer","minimum":1,"maximum":3,"exclusiveMaximum":true}`, `1`, true},
		{`{"type":"integer","maximum":3,"exclusiveMaximum":true}`, `2`, true},
	} {
		assert.Equal(t, test.want, follows(t, test.schema, test.text), "%s %s", test.schema, test.text)
	}
}
