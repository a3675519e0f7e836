package tokenizer

import (
	"strings"
	"unicode/utf8"
	"unsafe"
)

// newDecodeTable returns an empty table for n ids.
func newDecodeTable(n int) decodeTable {
	return decodeTable{kind: make([]uint8, n), text: make([]string, n), skip: make([]bool, n)}
}

// Kinds of token for the decoder.
const (
	decodeNothing = iota // no token: leaves no trace
	decodeText
	decodePlain   // text that keeps its blank even at the start of the whole text
	decodeByte    // one byte of a character; text holds it
	decodeControl // ends a run of bytes and gives no text
)

// decodeTable says how ids become text, in three steps: what depends on the
// token alone (done when the table is made), joining bytes into characters, and
// what depends on the whole text.
type decodeTable struct {
	kind []uint8
	text []string // by id
	skip []bool   // by id: left out with the special tokens

	// bytes: the texts of all tokens are joined first and then read as UTF-8,
	// with one U+FFFD for each longest invalid part (byte-level).
	bytes bool
	// wholeRuns: a run of byte tokens becomes characters if all of it is valid,
	// else one U+FFFD for each byte. Without it, each character is decoded on
	// its own.
	wholeRuns bool
	// perToken is applied to the text of each token after bytes are joined.
	perToken []stripChars
	// first replaces the text of a token that comes first, if the token is in it.
	first map[int32]string
	sep   string // between tokens
	// fused is applied to the whole text.
	fused []stripChars
	// firstBlank: SentencePiece drops one blank at the start of the text
	// (dropOne), or one from each token until there is text (dropAll).
	firstBlank int
}

const (
	dropOne = 1 + iota
	dropAll
)

// stripChars removes up to start copies of char from the start and up to stop from
// the end.
type stripChars struct {
	char        string
	start, stop int
}

func (p stripChars) apply(s string) string {
	for i := 0; i < p.start && strings.HasPrefix(s, p.char); i++ {
		s = s[len(p.char):]
	}
	for i := 0; i < p.stop && strings.HasSuffix(s, p.char); i++ {
		s = s[:len(s)-len(p.char)]
	}
	return s
}

// Decode returns the text of ids; skipSpecial leaves special tokens out. Ids that
// are not tokens give no text. Bytes that are not UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	d := t.NewDecoder(skipSpecial)
	d.whole = true
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(d.Write(id))
	}
	b.WriteString(d.Flush())
	return b.String()
}

// StreamDecoder turns ids into text one at a time. The texts that Write and Flush
// return add up to what [Tokenizer.Decode] returns for all the ids, and none of
// them holds part of a character. One case differs: where only part of a run of byte
// tokens is UTF-8, some decoders of tokenizer.json give up the whole run, while a
// StreamDecoder has already returned the characters before that part. With most
// decoders, Write allocates only when it joins a character from several tokens. A
// StreamDecoder belongs to one goroutine.
type StreamDecoder struct {
	t     *Tokenizer
	skip  bool
	whole bool // wait for the end of a run of bytes if the decoder looks at all of it

	started bool   // a token has come
	run     []byte // bytes waiting for the rest of their character or run
	buf     []byte // text of this call

	stripped []int    // by stage of fused: characters stripped from the start so far, or -1 when that is done
	held     []string // by stage of fused: characters that may still be stripped from the end
	blank    bool     // SentencePiece: the blank at the start has not come yet
	given    bool     // SentencePiece: there has been text
}

// NewDecoder returns a decoder for one text.
func (t *Tokenizer) NewDecoder(skipSpecial bool) *StreamDecoder {
	d := &StreamDecoder{t: t, skip: skipSpecial}
	d.reset()
	return d
}

// reset makes the decoder ready for another text.
func (d *StreamDecoder) reset() {
	n := len(d.t.dec.fused)
	d.started, d.run, d.buf = false, d.run[:0], d.buf[:0]
	d.stripped, d.held = make([]int, n), make([]string, n)
	d.blank, d.given = true, false
}

// Continue makes the text go on from another one: a blank that a vocabulary in the
// style of SentencePiece has before a word at the start of a text is kept. Call it
// before the first Write.
func (d *StreamDecoder) Continue() {
	d.started, d.given = true, true
	for i := range d.stripped {
		d.stripped[i] = -1
	}
}

// Write takes the next id and returns the text that is now complete, which may be
// empty.
func (d *StreamDecoder) Write(id int32) string {
	tab := &d.t.dec
	if id < 0 || int(id) >= len(tab.kind) || tab.kind[id] == decodeNothing {
		return ""
	}
	if d.skip && tab.skip[id] {
		return ""
	}
	text := tab.text[id]
	d.buf = d.buf[:0]
	if tab.bytes {
		return d.bytes(text, tab.kind[id] == decodeControl)
	}
	first := !d.started
	d.started = true
	if first {
		if s, ok := tab.first[id]; ok {
			text = s
		}
	} else if tab.sep != "" {
		text = tab.sep + text
	}
	if tab.kind[id] == decodeByte {
		d.run = append(d.run, text...)
		if !tab.wholeRuns || !d.whole {
			d.readRun(false)
		}
		return d.strip(string(d.buf))
	}
	d.endRun()
	if tab.firstBlank != 0 && tab.kind[id] == decodeText {
		text = d.dropBlank(text)
	}
	if len(d.buf) == 0 && len(tab.perToken) == 0 {
		d.given = d.given || text != ""
		return d.strip(text)
	}
	d.add(text)
	return d.strip(string(d.buf))
}

// Flush ends the text and returns the rest of it. The decoder can then be
// used for a new text.
func (d *StreamDecoder) Flush() string {
	d.buf = d.buf[:0]
	var out string
	if d.t.dec.bytes {
		out = d.bytes("", true)
	} else {
		d.endRun()
		// What is still held back at this point is what had to be stripped.
		out = d.strip(string(d.buf))
	}
	d.reset()
	return out
}

// bytes is Write for tables with bytes set: end says that nothing that follows
// can belong to the last character.
func (d *StreamDecoder) bytes(text string, end bool) string {
	if len(d.run) == 0 && !end && utf8.ValidString(text) {
		return text
	}
	d.run = append(d.run, text...)
	d.readRun(end)
	return string(d.buf)
}

// readRun moves the complete part of d.run to the text; end says that
// nothing follows.
func (d *StreamDecoder) readRun(end bool) {
	b := d.run
	for len(b) > 0 {
		if utf8.FullRune(b) {
			if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
				d.add(unsafe.String(&b[0], n))
				b = b[n:]
				continue
			}
		}
		n, open := badPrefix(b)
		if open && !end {
			break
		}
		if !d.t.dec.bytes {
			n = 1
		}
		d.add("\uFFFD")
		b = b[n:]
	}
	d.run = append(d.run[:0], b...)
}

// endRun ends a run of byte tokens.
func (d *StreamDecoder) endRun() {
	tab := &d.t.dec
	if !tab.wholeRuns || !d.whole {
		d.readRun(true)
		return
	}
	if len(d.run) == 0 {
		return
	}
	if utf8.Valid(d.run) {
		d.add(string(d.run))
	} else {
		for range d.run {
			d.add("\uFFFD")
		}
	}
	d.run = d.run[:0]
}

// add strips the text of a token, or of joined bytes, by perToken and appends it to
// buf.
func (d *StreamDecoder) add(text string) {
	for _, p := range d.t.dec.perToken {
		text = p.apply(text)
	}
	if text == "" {
		return
	}
	d.given = true
	d.buf = append(d.buf, text...)
}

// strip removes what has to go from the start of the whole text, of which out is
// the next part, and holds back what may have to go from its end.
func (d *StreamDecoder) strip(out string) string {
	if out == "" {
		return ""
	}
	for i, p := range d.t.dec.fused {
		for d.stripped[i] >= 0 && out != "" {
			if d.stripped[i] == p.start || !strings.HasPrefix(out, p.char) {
				d.stripped[i] = -1
				break
			}
			out = out[len(p.char):]
			d.stripped[i]++
		}
		if p.stop > 0 {
			out = d.held[i] + out
			keep := len(out)
			for n := 0; n < p.stop && strings.HasSuffix(out[:keep], p.char); n++ {
				keep -= len(p.char)
			}
			d.held[i] = strings.Clone(out[keep:])
			out = out[:keep]
		}
	}
	return out
}

// dropBlank removes the blank that SentencePiece put in front from the start of
// the text.
func (d *StreamDecoder) dropBlank(text string) string {
	if !d.blank || d.given {
		d.blank = false
		return text
	}
	if rest, ok := strings.CutPrefix(text, " "); ok {
		// With dropAll every token at the start loses its blank, until there is text.
		d.blank = d.t.dec.firstBlank == dropAll
		return rest
	}
	return text
}
