package structured

import (
	"bytes"
	"context"
	"crypto/rand"
	"strings"

	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/tokenizer"
)

// callStart finds where calls begin in an answer.
type callStart struct {
	t    *Tools
	g    *grammar.Grammar
	tok  *tokenizer.Tokenizer
	text []byte // the end of the answer so far: a part of the mark, or of the first call
	none bool   // no calls can come any more
}

// token takes a token and returns the state after it; nil before the calls.
func (c *callStart) token(ctx context.Context, budget *grammar.Budget, id int32) (*grammar.State, error) {
	if id == c.t.first {
		return c.g.Start(), nil
	}
	if c.none {
		return nil, nil
	}
	c.text = append(c.text, c.tok.TokenBytes(id)...)
	if c.t.mark == "" {
		s, err := c.g.Bytes(ctx, budget, c.g.Start(), c.text)
		switch {
		case s == nil || err != nil:
			c.none = true
		case len(c.text) >= len(c.t.open):
			return s, nil
		}
		return nil, err
	}
	if i := bytes.Index(c.text, []byte(c.t.mark)); i >= 0 {
		s, err := c.g.Bytes(ctx, budget, c.g.Start(), c.text[i+len(c.t.mark):])
		c.none = s == nil
		return s, err
	}
	if n := len(c.text) - len(c.t.mark); n > 0 {
		c.text = c.text[n:]
	}
	return nil, nil
}

// Call is a piece of a call of a function: the first piece of each has the id and the name,
// the others have more of the arguments, which are JSON once they are complete.
type Call struct {
	Index     int // of the call in its answer, from 0
	ID, Name  string
	Arguments string
}

// callReader splits an answer into text and calls, as it comes.
type callReader struct {
	t     *Tools
	stage callStage
	buf   string // still undecided
	lost  string // preceded it; it is text if no call follows
	begun bool   // without a mark: the answer did not begin with a call
	calls int
	at    strictjson.Nesting // in the arguments
}

type callStage int

const (
	inText      callStage = iota // a mark may still come
	inHead                       // of a call: up to its arguments
	inArguments                  // of a call
	inTail                       // after a call
	afterCalls                   // only text comes
)

// add takes the next piece of the answer; last is set at the end.
func (c *callReader) add(text string, last bool) (string, []Call) {
	c.buf += text
	content := ""
	var calls []Call
	for {
		before, stage := len(c.buf), c.stage
		switch c.stage {
		case inText:
			content += c.text()
		case inHead:
			content, calls = c.head(content, calls)
		case inArguments:
			if n := c.arguments(); n > 0 {
				calls = append(calls, Call{Index: c.calls - 1, Arguments: c.buf[:n]})
				c.buf = c.buf[n:]
			}
		case inTail:
			c.tail()
		case afterCalls:
			content += c.buf
			c.buf = ""
		}
		if c.stage == stage && (len(c.buf) == before || c.buf == "" || stage == inTail) {
			break
		}
	}
	if last && c.calls == 0 {
		// Where nothing but a call can come, the beginning of one is not text.
		if !c.t.o.Required && !c.cutHead() {
			content += c.lost + c.buf
		}
		c.buf, c.lost = "", ""
	}
	return content, calls
}

// cutHead reports whether the undecided text is the beginning of a call after a mark.
func (c *callReader) cutHead() bool {
	rest := strings.TrimLeft(c.buf, " [\n")
	for name := range c.t.names {
		if c.t.mark != "" && c.stage == inHead && strings.HasPrefix(c.t.open+name+c.t.middle, rest) {
			return true
		}
	}
	return false
}

// text returns the text that certainly is not part of a call. In a syntax without a mark, the
// token that may precede calls is a mark once text has come.
func (c *callReader) text() string {
	mark := c.t.mark
	if mark == "" {
		mark = llamaTag
		rest := strings.TrimPrefix(c.buf, llamaTag)
		switch {
		case c.begun:
		case strings.HasPrefix(rest, c.t.open):
			c.lost, c.buf, c.stage = c.buf[:len(c.buf)-len(rest)], rest, inHead
			return ""
		case strings.HasPrefix(c.t.open, rest) || strings.HasPrefix(llamaTag, c.buf):
			return ""
		case c.t.first < 0:
			c.stage = afterCalls
			return ""
		}
		c.begun = true
	}
	if i := strings.Index(c.buf, mark); i >= 0 {
		out := c.buf[:i]
		c.lost, c.buf, c.stage = mark, c.buf[i+len(mark):], inHead
		return out
	}
	hold := 0
	for n := min(len(mark)-1, len(c.buf)); n > 0; n-- {
		if strings.HasSuffix(c.buf, mark[:n]) {
			hold = n
			break
		}
	}
	out := c.buf[:len(c.buf)-hold]
	c.buf = c.buf[len(c.buf)-hold:]
	return out
}

// head reads the name of a function. What does not begin like a call was text.
func (c *callReader) head(content string, calls []Call) (string, []Call) {
	near := min(len(c.buf), 4+len(c.t.open)) // the same for any pieces that the answer comes in
	at := strings.Index(c.buf[:near], c.t.open)
	if at < 0 && len(c.buf) < 4+len(c.t.open) {
		return content, calls
	}
	if at >= 0 {
		rest := c.buf[at+len(c.t.open):]
		next := c.t.middle
		i := strings.Index(rest, next)
		if i < 0 && len(rest) < 64+len(next) {
			return content, calls
		}
		if i >= 0 && c.t.names[rest[:i]] {
			calls = append(calls, Call{Index: c.calls, ID: c.t.newID(), Name: rest[:i]})
			c.calls++
			c.buf, c.lost, c.stage = rest[i+len(next):], "", inArguments
			c.at = strictjson.Nesting{}
			return content, calls
		}
	}
	content += c.lost
	c.lost, c.stage = "", afterCalls
	return content, calls
}

// arguments returns how much of buf belongs to the arguments, which end where their
// object is closed or, if a schema lets them be something else, before the bracket that
// closes the call.
func (c *callReader) arguments() int {
	for i := range len(c.buf) {
		if b := c.buf[i]; c.at.Next(b) && (b == '}' || b == ']') && c.at.Depth <= 0 {
			c.stage = inTail
			return i + 1 + c.at.Depth
		}
	}
	return len(c.buf)
}

// tail looks for a further call.
func (c *callReader) tail() {
	begin, skip := c.t.open, 0
	if begin == "" {
		begin, skip = c.t.mark, len(c.t.mark)
	}
	if i := strings.Index(c.buf, begin); i >= 0 {
		c.buf, c.lost, c.stage = c.buf[i+skip:], "", inHead
	} else if n := len(c.buf) - len(begin); n > 0 {
		c.buf = c.buf[n:]
	}
}

// newID returns an id for a call.
func (t *Tools) newID() string {
	if t.idBytes > 0 {
		return rand.Text()[:t.idBytes]
	}
	return "call_" + rand.Text()
}
