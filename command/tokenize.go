package command

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/lukv/lukv/tokenizer"
)

type tokenizeCmd struct {
	Model string  `arg:"" help:"Checkpoint folder, GGUF file, hub name in the cache, vocabulary file, or builtin."`
	Text  *string `arg:"" optional:"" help:"Text, or ids with --decode (default: standard input)."`

	AddSpecial    bool `help:"Add the special tokens that the checkpoint puts around a text."`
	SpecialAsText bool `help:"Encode special tokens in the text as ordinary text."`
	Decode        bool `help:"Decode ids, separated by blanks or commas, to text."`
	SkipSpecial   bool `help:"With --decode: omit special tokens."`
	Count         bool `help:"Print only the number of tokens."`
	JSON          bool `help:"Print one JSON object."`
}

func (tokenizeCmd) Help() string {
	return `Print a line for each token: its id, the range of bytes in the text, its name in the vocabulary, and its text, quoted.

Examples:

  lukv tokenize builtin "Hello world"

  lukv tokenize DIR --count < book.txt

  lukv tokenize DIR --decode "1 22557 28725"`
}

// tokenInfo is one token of tokenize --json.
type tokenInfo struct {
	ID    int32  `json:"id"`
	Piece string `json:"piece"`
	Start int    `json:"start"` // byte offsets in the text
	End   int    `json:"end"`
}

func (c *tokenizeCmd) Run(e *env) error {
	switch {
	case c.SkipSpecial && !c.Decode:
		return usage("--skip-special needs --decode")
	case c.Decode && (c.AddSpecial || c.SpecialAsText || c.Count):
		return usage("--decode: --add-special, --special-as-text and --count are for the other direction")
	}
	tok, err := openTokenizer(c.Model)
	if err != nil {
		return err
	}
	var text string
	if c.Text != nil {
		text = *c.Text
	} else {
		data, err := e.readFile("-")
		if err != nil {
			return err
		}
		text = string(data)
	}
	if c.Decode {
		return c.decode(e, tok, text)
	}
	ids, spans, err := tok.EncodeOffsets(e.ctx, text, tokenizer.EncodeOptions{AddSpecial: c.AddSpecial, SpecialAsText: c.SpecialAsText})
	if err != nil {
		return err
	}
	switch {
	case c.Count && c.JSON:
		return e.writeJSON("lukv tokenize 1", map[string]int{"count": len(ids)})
	case c.Count:
		_, err := fmt.Fprintln(e.out, len(ids))
		return err
	case c.JSON:
		list := make([]tokenInfo, len(ids))
		for i, id := range ids {
			list[i] = tokenInfo{id, tok.Piece(id), spans[i].Start, spans[i].End}
		}
		return e.writeJSON("lukv tokenize 1", map[string]any{"count": len(ids), "tokens": list})
	}
	w := bufio.NewWriter(e.out)
	for i, id := range ids {
		s := spans[i]
		fmt.Fprintf(w, "%d\t%d-%d\t%s\t%q\n", id, s.Start, s.End, visibleName(tok.Piece(id)), text[s.Start:s.End])
	}
	return w.Flush()
}

func (c *tokenizeCmd) decode(e *env, tok *tokenizer.Tokenizer, text string) error {
	ids, err := parseIDs(text, tok.VocabSize())
	if err != nil {
		return err
	}
	out := tok.Decode(ids, c.SkipSpecial)
	if c.JSON {
		return e.writeJSON("lukv tokenize 1", map[string]any{"count": len(ids), "text": out})
	}
	if isTerminal(e.out) {
		out += "\n"
	}
	_, err = io.WriteString(e.out, out)
	return err
}

// parseIDs parses ids separated by white space or commas, optionally in brackets.
func parseIDs(text string, vocabulary int) ([]int32, error) {
	var ids []int32
	for _, f := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,[]", r) }) {
		id, err := strconv.ParseInt(f, 10, 32)
		if err != nil || id < 0 || int(id) >= vocabulary {
			return nil, usage("--decode: found %q, expected ids from 0 to %d", f, vocabulary-1)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// visibleName returns a piece's name, quoted if it contains anything that needs escaping.
func visibleName(s string) string {
	q := strconv.QuoteToGraphic(s)
	if q == `"`+s+`"` {
		return s
	}
	return q
}
