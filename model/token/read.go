package token

import "fmt"

// Keys is the metadata of a model file, as far as a vocabulary needs it. Asking
// for a key that is absent, or of another type, is an error that names it.
type Keys interface {
	Has(key string) bool
	String(key string) (string, error)
	Uint(key string) (uint64, error)
	Bool(key string) (bool, error)
	Strings(key string) ([]string, error)
	Ints(key string) ([]int64, error)
}

// ReadVocab takes the vocabulary out of a GGUF file's metadata. Only byte-level
// BPE is supported; another kind is refused by its name, and so is a file that
// does not name its pre-tokenizer, since guessing it gives wrong ids silently.
func ReadVocab(f Keys) (Vocab, error) {
	v := Vocab{}
	model, err := f.String("tokenizer.ggml.model")
	if err != nil {
		return v, err
	}
	if model != "gpt2" {
		return v, fmt.Errorf("tokenizer.ggml.model: %q is not supported, only gpt2 (byte-level BPE) is", model)
	}
	if v.Pre, err = f.String("tokenizer.ggml.pre"); err != nil {
		return v, err
	}
	if v.Tokens, err = f.Strings("tokenizer.ggml.tokens"); err != nil {
		return v, err
	}
	if v.Merges, err = f.Strings("tokenizer.ggml.merges"); err != nil {
		return v, err
	}
	if f.Has("tokenizer.ggml.token_type") {
		types, err := f.Ints("tokenizer.ggml.token_type")
		if err != nil {
			return v, err
		}
		v.Types = make([]int32, len(types))
		for i, t := range types {
			if t < 0 || t > int64(Byte) {
				return v, fmt.Errorf("tokenizer.ggml.token_type: element %d is %d, which is not known", i, t)
			}
			v.Types[i] = int32(t)
		}
	}
	for _, id := range []struct {
		to  *int
		key string
	}{
		{&v.Bos, "tokenizer.ggml.bos_token_id"},
		{&v.Eos, "tokenizer.ggml.eos_token_id"},
		{&v.Eot, "tokenizer.ggml.eot_token_id"},
		{&v.Unk, "tokenizer.ggml.unknown_token_id"},
		{&v.Pad, "tokenizer.ggml.padding_token_id"},
	} {
		*id.to = -1
		if !f.Has(id.key) {
			continue
		}
		n, err := f.Uint(id.key)
		if err != nil {
			return v, err
		}
		if n >= uint64(len(v.Tokens)) {
			return v, fmt.Errorf("%s: %d is outside the %d tokens", id.key, n, len(v.Tokens))
		}
		*id.to = int(n)
	}
	// The family of llama-bpe begins with bos even where its files do not say so.
	v.AddBos = v.Pre == "llama-bpe" && v.Bos >= 0
	if f.Has("tokenizer.ggml.add_bos_token") {
		if v.AddBos, err = f.Bool("tokenizer.ggml.add_bos_token"); err != nil {
			return v, err
		}
	}
	return v, nil
}
