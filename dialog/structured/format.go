package structured

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lukv/lukv/internal/grammar"
)

// Format is the set of texts that an answer may be. The zero value allows any text. Errors in
// a schema or an expression come with the request that uses the format, as a [FormatError].
type Format struct {
	part grammar.Part
	key  []byte // identifies the format; nil: anything
	err  error

	// Alternatively, the answer begins with a control token and continues as first
	// says; nil: it cannot.
	firstToken int32
	first      *Format
}

// IsZero reports whether the format allows any text.
func (f Format) IsZero() bool { return f.key == nil }

// Size returns about the number of bytes of the schema, expression or texts.
func (f Format) Size() int { return len(f.key) }

// Schema is the JSON texts of the values that a JSON Schema describes. If the schema does not
// say whether an object may have further properties, it may unless strict is set.
func Schema(schema []byte, strict bool) Format {
	return Format{part: grammar.Schema(schema, strict), key: fmt.Appendf(nil, "schema %v %s", strict, schema)}
}

// Type is the JSON texts that encoding/json decodes into a T with every field set, see
// [SchemaOf].
func Type[T any]() Format {
	schema, err := SchemaOf[T]()
	f := Schema(schema, true)
	f.err = err
	return f
}

// Object is any JSON object.
func Object() Format {
	return Format{part: grammar.Schema([]byte(`{"type":"object"}`), false), key: []byte("object")}
}

// Regexp is the texts that a regular expression of package regexp matches as a whole. Word
// boundaries and the anchors of lines within a text are errors.
func Regexp(expr string) Format {
	return Format{part: grammar.Regexp(expr), key: []byte("regex " + expr)}
}

// Choice is any of the texts, of which there must be at least one.
func Choice(texts ...string) Format {
	key, _ := json.Marshal(texts)
	return Format{part: grammar.Texts(texts...), key: append([]byte("choice "), key...)}
}

// FormatError says that a format cannot be enforced: a wrong schema or expression, one that
// takes too much work, or that no token of the model continues.
type FormatError struct{ Err error }

func (e *FormatError) Error() string { return "the format of the answer: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FormatError) Unwrap() error { return e.Err }

// formatError makes an error one about a format, unless ctx is done.
func formatError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &FormatError{err}
}
