package sample

// Params says how the next token is chosen from logits. The zero value is
// greedy. All of it crosses the process boundary with the request.
type Params struct {
	Temperature float64 // 0: the most likely token
	TopP        float64 // keep the smallest set with at least this probability; 1 or 0: all
	TopK        int     // keep that many; 0 or -1: all
	MinP        float64 // drop tokens less likely than MinP times the most likely; 0: none
	Seed        uint64
	Presence    float64 // subtracted once from a token already produced
	Frequency   float64 // subtracted once for each time it was produced
	Repetition  float64 // divides (multiplies if negative) logits of tokens seen in prompt or output; 1 or 0: off
	Bias        []Bias  // added to logits
}

// Bias is added to one token's logit.
type Bias struct {
	Token int32
	Value float32
}
