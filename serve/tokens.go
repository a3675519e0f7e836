package serve

import (
	"math"
	"net/http"

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
	limit := v.e.MaxTokens()
	var ids []int32
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
	out := map[string]any{"tokens": append([]int32{}, ids...), "count": len(ids), "max_model_len": limit}
	if f.boolean("return_token_strs") {
		pieces := []string{}
		for _, id := range ids {
			pieces = append(pieces, v.tok.Piece(id))
		}
		out["token_strs"] = pieces
	}
	return writeJSON(w, out)
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
