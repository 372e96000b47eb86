// Package sample chooses the next token from logits. It owns the rules of
// choosing and the history they need; it computes no logits, and which tokens
// end an answer is the caller's business.
//
// # A pure function
//
// A choice depends on the logits, the Params, the tokens so far and the position,
// on nothing else: no stream of random numbers runs along. A sequence that is
// resumed at position n, in another process, chooses as it would have chosen.
//
// # Order
//
// All arithmetic is in float64, starting from the float32 logits. A logit that is
// not finite belongs to a token that is never chosen; if none is finite that is
// an error.
//
//  1. Bias: each entry's value is added to its token's logit. Several entries for
//     one token add up, in their order.
//  2. Repetition: the logit of every token of prompt or output is divided by the
//     penalty if it is positive and multiplied by it otherwise.
//  3. Presence and frequency: from the logit of a token that was produced n > 0
//     times, presence + n·frequency is subtracted. Prompt tokens do not count.
//  4. Temperature 0: the token with the largest logit is chosen, the lowest of
//     equals. That is all.
//  5. Weights: the best token has logit m, and every token gets the integer weight
//     w = ⌊2⁴⁴ · exp((logit − m) / temperature)⌋, as the function weight computes
//     it. So probabilities are multiples of 2⁻⁴⁴ of the best one's, and sums of
//     weights are exact in any order; they stay below 2⁶³ for vocabularies of up
//     to 2¹⁸ tokens.
//  6. TopK keeps the TopK tokens with the largest logits, the lowest of equals.
//  7. TopP keeps, of these, tokens in descending order of logit, the lowest of
//     equals first, until they have at least TopP of their total weight.
//  8. MinP keeps, of these, tokens of weight ⌈MinP · 2⁴⁴⌉ and more.
//  9. Draw: with total weight W of what is kept and r = ⌊Random(seed, position) · W /
//     2⁶⁴⌋, the choice is the first token in ascending order for which the running
//     sum of weights exceeds r.
//
// The vocabulary is never sorted: the kept set of 6 and 7 is a threshold, found
// with a small heap, or by adding up the weights of similar logits and looking
// closer only where the limit falls. As sums are exact, so is the result.
//
// # Random numbers
//
// Random(seed, position) = mix(mix(seed) + (position + 1) · γ) with
// γ = 0x9e3779b97f4a7c15 and mix the finaliser of SplitMix64: the position'th
// number of a SplitMix64 stream that starts at mix(seed). Position counts from the
// first token of the prompt, which is 0; the token chosen there has that position.
package sample
