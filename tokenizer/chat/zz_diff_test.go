package chat

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"testing"
)

func TestZZDiff(t *testing.T) {
	in := os.Getenv("ZZ_IN")
	if in == "" {
		t.Skip()
	}
	f, _ := os.Open(in)
	out, _ := os.Create(os.Getenv("ZZ_OUT"))
	defer out.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<24)
	enc := json.NewEncoder(out)
	for sc.Scan() {
		var c struct {
			T string
			C json.RawMessage
		}
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		v, err := DecodeJSON(c.C)
		if err != nil {
			t.Fatal(err)
		}
		tm, err := Parse("x", c.T)
		var got string
		if err == nil {
			got, err = tm.Execute(context.Background(), v.(*Object), Options{Now: goldenTime})
		}
		r := map[string]any{"out": got}
		if err != nil {
			r["err"] = err.Error()
		}
		enc.Encode(r)
	}
}
