package strictjson

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, text string) *Object {
	t.Helper()
	o, err := ParseObject([]byte(text), 8)
	require.NoError(t, err)
	return o
}

func TestObjectReads(t *testing.T) {
	o := parse(t, ` { "s" : "a\nb", "b":true, "n":1.5, "i":-7, "w":5.0e1, "z":null, "l":[1,[2],{"x":3}],
		"t":["a","b"], "o":{"in":{"k":"v"}}, "e":[], "os":[{"k":1},{"k":2}] } `)
	assert.Equal(t, "a\nb", o.String("s", "def"))
	assert.True(t, o.Bool("b", false))
	assert.Equal(t, 1.5, o.Float("n", 0))
	assert.Equal(t, 1.5, o.Between("n", 0, 1, 2))
	assert.Equal(t, -7, o.Int("i", 0, -10, 10))
	assert.Equal(t, 50, o.Whole("w", 0, 0, 100))
	assert.Equal(t, -7, o.Whole("i", 0, -10, 10))
	assert.Equal(t, []string{"a", "b"}, o.Strings("t", 2))
	assert.Equal(t, "v", o.Object("o").Object("in").String("k", ""))
	assert.Equal(t, "o.in", o.Object("o").Object("in").Path())
	var list []string
	for _, raw := range o.List("l", 3) {
		list = append(list, string(raw))
	}
	assert.Equal(t, []string{`1`, `[2]`, `{"x":3}`}, list)
	objects := o.Objects("os", 2)
	require.Len(t, objects, 2)
	assert.Equal(t, 2, objects[1].Int("k", 0, 0, 9))
	assert.Equal(t, "os[1].k", objects[1].PathOf("k"))

	for _, key := range []string{"z", "absent"} {
		assert.Equal(t, "def", o.String(key, "def"))
		assert.True(t, o.Bool(key, true))
		assert.Equal(t, 2.0, o.Float(key, 2))
		assert.Equal(t, 3, o.Int(key, 3, 0, 1)) // a default need not be in range
		assert.Equal(t, 3, o.Whole(key, 3, 0, 1))
		assert.Nil(t, o.List(key, 1))
		assert.Nil(t, o.Strings(key, 1))
		assert.Nil(t, o.Object(key))
		assert.Nil(t, o.Raw(key))
		assert.False(t, o.Has(key))
	}
	assert.True(t, o.Null("z"))
	assert.False(t, o.Null("absent"))
	assert.NotNil(t, o.List("e", 1))
	require.NoError(t, o.Err())

	var none *Object
	assert.Equal(t, 4, none.Object("x").Int("y", 4, 0, 9))
	assert.Zero(t, none.Len())
}

// TestObjectErrors: the first error counts, with the path of the value.
func TestObjectErrors(t *testing.T) {
	const text = `{"s":"x","n":1,"o":{"list":[{"k":[]}]},"l":[1,2,3],"f":1e999,"big":9007199254740993.0,"exact":9007199254740993}`
	for want, read := range map[string]func(o *Object){
		`"n": found 1, expected a string`:                          func(o *Object) { o.String("n", "") },
		`"s": found "x", expected true or false`:                   func(o *Object) { o.Bool("s", false) },
		`"s": found "x", expected a number`:                        func(o *Object) { o.Float("s", 0) },
		`"f": found 1e999, expected a number`:                      func(o *Object) { o.Float("f", 0) },
		`"n": found 1, expected a number from 2 to 3`:              func(o *Object) { o.Between("n", 0, 2, 3) },
		`"n": found 1, expected a whole number from 2 to 3`:        func(o *Object) { o.Int("n", 0, 2, 3) },
		`"s": found "x", expected a whole number of at least 0`:    func(o *Object) { o.Int("s", 0, 0, math.MaxInt) },
		`"absent": missing, expected a whole number from 0 to 9`:   func(o *Object) { o.Int("absent", Required, 0, 9) },
		`"big": found 9007199254740993.0, expected a whole number`: func(o *Object) { o.Whole("big", 0, 0, math.MaxInt) },
		`"l": found more than 2 elements, expected at most 2`:      func(o *Object) { o.List("l", 2) },
		`"l[0]": found a number, expected a string`:                func(o *Object) { o.Strings("l", 3) },
		`"l[0]": found a number, expected an object`:               func(o *Object) { o.Objects("l", 3) },
		`"s": found "x", expected a list of strings`:               func(o *Object) { o.Strings("s", 3) },
		`"o": found an object, expected a list`:                    func(o *Object) { o.List("o", 3) },
		`"s": found "x", expected an object`:                       func(o *Object) { o.Object("s") },
		`"o.list[0].k": found [], expected a string`:               func(o *Object) { o.Object("o").Objects("list", 1)[0].String("k", "") },
		`"n": first`: func(o *Object) { o.Fail("n", "first"); o.Fail("s", "second") },
	} {
		o := parse(t, text)
		read(o)
		require.ErrorContains(t, o.Err(), want)
		var field *FieldError
		require.ErrorAs(t, o.Err(), &field)
	}
	o := parse(t, text)
	if math.MaxInt > math.MaxInt32 {
		assert.EqualValues(t, int64(9007199254740993), o.Whole("exact", 0, 0, math.MaxInt), "numbers are exact")
	}
	reason := errors.New("reason")
	o.Fail("n", "because: %w", reason)
	assert.ErrorIs(t, o.Err(), reason)
	for _, text := range []string{`[]`, `null`, `{`, `{} x`, `{"a":1,"a":1}`, `{"a":[[[[[[[[1]]]]]]]]}`} {
		_, err := ParseObject([]byte(text), 8)
		assert.Error(t, err, text)
	}
}

func TestObjectChanges(t *testing.T) {
	o := parse(t, `{"b":1,"a":null}`)
	o.Set("c", []byte(`3`))
	o.Set("b", []byte(`2`))
	o.Delete("a")
	o.Delete("absent")
	var all []string
	for key, value := range o.All() {
		all = append(all, key+string(value))
	}
	assert.Equal(t, []string{"b2", "c3"}, all)
}

func TestUnmarshal(t *testing.T) {
	var v struct{ A int }
	require.NoError(t, Unmarshal([]byte(`{"A":5}`), 1, &v))
	assert.Equal(t, 5, v.A)
	assert.ErrorContains(t, Unmarshal([]byte(`{"A":5,"A":6}`), 1, &v), "occurs twice")
}
