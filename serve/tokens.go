package serve

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/lukv/lukv/tokenizer"
)

// maxCounted bounds the tokens of a prompt that is only counted: texts are bounded by the
// body, and prompts that the model cannot take are the ones that clients count.
const maxCounted = 1 << 30

// tokenize returns the tokens of a prompt or of a conversation.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	v, err := s.model(f, false)
	if err != nil {
		return err
	}
	if err := f.countTokens(); err != nil {
		return err
	}
	var ids []int32
	texts := f.boolean("return_token_strs")
	if f.has("messages") {
		in := input(f)
		tools(f, v, &in)
		refuse(f, "continue_final_message", "false")
		if f.err != nil {
			return f.err
		}
		ids, err = v.format.Tokens(r.Context(), in, maxCounted)
	} else {
		text := f.str("prompt")
		special := !f.has("add_special_tokens") || f.boolean("add_special_tokens")
		if !f.has("prompt") {
			f.fail("prompt", "missing; give a prompt or messages")
		}
		if f.err != nil {
			return f.err
		}
		ids, err = v.tok.EncodeContext(r.Context(), text, maxCounted, tokenizer.EncodeOptions{AddSpecial: special})
	}
	if err != nil {
		return err
	}
	return writeTokens(w, v, ids, texts)
}

// tokenCost is how many bytes the tokens of a text take for each byte of it, if they are
// not bounded by what the model takes.
const tokenCost = 40

// countTokens counts the memory of the tokens of a request that only asks for them.
func (f *fields) countTokens() error {
	return holdsOf(f.ctx).charge.take(int64(f.size)*tokenCost, forRequests)
}

// writeTokens writes tokens, and their texts if asked, piece by piece: a list of values to
// be encoded at once would take many times their memory.
func writeTokens(w http.ResponseWriter, v *served, ids []int32, texts bool) error {
	out := newPieceWriter(w)
	list := func(name string, element func(id int32)) (err error) {
		fmt.Fprintf(out, "%q:[", name)
		for i, id := range ids {
			if i%1024 == 0 && err == nil {
				err = out.piece()
			}
			if err != nil {
				return err
			}
			if i > 0 {
				out.WriteByte(',')
			}
			element(id)
		}
		out.WriteString("],")
		return nil
	}
	out.WriteByte('{')
	var digits [16]byte
	err := list("tokens", func(id int32) { out.Write(strconv.AppendInt(digits[:0], int64(id), 10)) })
	if texts && err == nil {
		err = list("token_strs", func(id int32) { encode(unbroken{out.Writer}, v.tok.Piece(id)) })
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `"count":%d,"max_model_len":%d}`+"\n", len(ids), v.e.MaxTokens())
	return out.Flush()
}

// unbroken drops the line break that encode ends with.
type unbroken struct{ *bufio.Writer }

func (w unbroken) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(bytes.TrimSuffix(p, []byte("\n")))
	return n + 1, err
}

// detokenize returns the text of tokens.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	v, err := s.model(f, false)
	if err != nil {
		return err
	}
	raw := f.raw("tokens")
	if raw == nil {
		return invalid("tokens", "tokens is missing")
	}
	ids := f.tokens("tokens", raw, v.m.Config().Vocab, math.MaxInt)
	if f.err != nil {
		return f.err
	}
	text := 0
	for _, id := range ids {
		text += len(v.tok.TokenBytes(id))
	}
	if err := countAnswer(r, 4*text); err != nil { // also as JSON
		return err
	}
	return writeJSON(w, map[string]string{"prompt": v.tok.Decode(ids, false)})
}

// tokenizerInfo returns what evaluation tools ask a remote tokenizer for.
func (s *Server) tokenizerInfo(w http.ResponseWriter, r *http.Request) error {
	v, err := s.served(r.Context(), r.URL.Query().Get("model"))
	if err != nil {
		return err
	}
	out := map[string]any{"vocab_size": v.tok.VocabSize(), "model_max_length": v.e.MaxTokens()}
	out["chat_template"], out["pad_token"] = orNull(v.format.Template()), orNull(v.format.SpecialToken("pad_token"))
	for key, id := range map[string]int32{"bos_token": v.tok.BOS(), "eos_token": v.tok.EOS()} {
		out[key] = nil
		if id >= 0 {
			out[key] = v.tok.Piece(id)
		}
	}
	return writeJSON(w, out)
}
