package report

import (
	"encoding/json"
	"io"
)

// WriteJSON writes v indented, followed by a newline.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
