"""Whether both ends noticed what a proxy damaged."""

from verdicts import expect

# Counts of damaged PDUs by who must notice them: (direction of the proxy, its count), the field that tells.
NOTICED = {
    ("requests", "damaged_headers"): ("target", "header_digest_errors"),
    ("requests", "damaged_data"): ("target", "data_digest_errors"),
    ("responses", "damaged_headers"): ("initiator", "header_digest_errors"),
    ("responses", "damaged_data"): ("initiator", "data_digest_errors"),
}


def judge_counts(injected, noticed, exact, lost):
    """`exact`: to the last. Otherwise damage may be unseen in two ways only: one of the `lost` connections, or one that the proxy cut,
    ended before its receiver came to it; or it is in the data of a PDU whose header was damaged too, and which was passed over. What
    else a damaged header hides lies behind it, where the receiver could not find its way, and that ends the connection.

    How many PDUs one end of a connection takes with it is bounded by what fits in the sockets and the proxy, which is thousands, and the
    proxy cannot know what the receiver has read of it. So there is no bound by the number of connections: two damaged PDUs that lie behind
    each other in a socket go by one cut. That half is noticed at least leaves much for this: with a command window of PDUs on their
    way and one PDU of a hundred damaged, an end takes less than one damaged PDU with it on average, and a connection carries several
    before it ends."""
    damage, missing = {"target": 0, "initiator": 0}, {"target": 0, "initiator": 0}
    ended = lost + sum(injected[way].get("cut", 0) for way in injected)
    for (way, damaged), (who, field) in NOTICED.items():
        done = injected[way].get(damaged, 0)
        seen = noticed[who][field]
        expect(seen == done if exact else seen <= done, f"{way}: {done} {damaged}, {seen} noticed by the {who}")
        hidden = injected[way].get("damaged_headers", 0) if damaged == "damaged_data" else 0
        expect(ended or done - seen <= hidden, f"{way}: {done} {damaged}, {seen} noticed by the {who}, and no connection ended")
        damage[who] += done
        missing[who] += done - seen
    for who, count in missing.items():
        expect(2 * count <= damage[who] + 1, f"{count} of {damage[who]} damaged PDUs were not noticed by the {who}")
