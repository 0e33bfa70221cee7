/* A trading client of the exchange of nearmetal in one file: C99 and POSIX, no dependency.
 *
 * Include it first in one source file. docs/wire.md describes what it sends, docs/guides/clients.md
 * how to use it. A client has one session. It goes to the next gateway when one fails or is silent,
 * sends again what has no answer, and gives each event once. It keeps no state on a disk: after a
 * restart it goes on behind the last request that the exchange has executed, and nm_next says how
 * many orders are live (NM_USED_BEFORE). It cannot log on where the network has a secret.
 */
#ifndef NEARMETAL_H
#define NEARMETAL_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NM_VERSION 10
#define NM_DIGEST 0x172AAFFB5277F838ULL /* of the format: a gateway with another one refuses */

#define NM_INSTRUMENTS_MAX 16 /* that one client may use */
#define NM_PENDING_MAX 64     /* requests on an instrument without an answer */
#define NM_EVENTS_MAX 4096    /* that wait for nm_next */
#define NM_FRAME_MAX (1 << 20)

/* What nm_next gives: NM_ACCEPTED to NM_UNCROSSED are events of orders, with the codes of the wire. */
enum nm_kind {
    NM_ACCEPTED, NM_REJECTED, NM_TRADED, NM_CANCELLED, NM_REPLACED, NM_REDUCED, NM_SLID,
    NM_TRIGGERED, NM_REFRESHED, NM_BANDS_SET, NM_HALTED, NM_RESUMED, NM_AUCTION_BEGUN, NM_UNCROSSED,
    NM_REFUSED = 64, /* a request is not executed, and never will be: number, reason */
    NM_EVENTS_LOST,  /* nobody keeps the events up to `number`: orders may have changed */
    NM_USED_BEFORE   /* the session was used before, and has `left` live orders there */
};

/* Fields that an event does not have are 0. Of a trade, `id` and `left` are those of the own order. */
typedef struct nm_event {
    int kind;
    uint32_t instrument;
    uint64_t number; /* of the event on the instrument; of the request, if it is refused */
    uint64_t id, quantity, left;
    int64_t price;
    int reason;
    uint64_t most, asked; /* of a limit of the firm, if that is the reason of a rejection */
} nm_event;

typedef struct nm_request { uint64_t seq, previous; uint32_t size; uint8_t command[70]; } nm_request;

typedef struct nm_stream {
    uint32_t instrument;
    int is_known, count, sent;
    uint64_t last, answered, seen, handled;
    int64_t asked_ms;
    nm_request pending[NM_PENDING_MAX];
} nm_stream;

typedef struct nm_client {
    const char *const *gateways;
    int gateway_count, gateway, socket, is_logged_on, streams_count, links;
    uint32_t session, heartbeat_ms, cancel_after_s;
    uint64_t last_seq, beats;
    int64_t contact_ms, beat_ms;
    nm_stream streams[NM_INSTRUMENTS_MAX];
    nm_event events[NM_EVENTS_MAX];
    unsigned first, behind;
    nm_event given;
    size_t size;
    uint8_t input[2 * NM_FRAME_MAX];
    char error[512]; /* why a call has failed, in words */
} nm_client;

static void nm_put(uint8_t *to, uint64_t value, int bytes) {
    for (int at = 0; at < bytes; at++) to[at] = (uint8_t)(value >> 8 * at);
}

static uint64_t nm_get(const uint8_t *from, int bytes) {
    uint64_t value = 0;
    for (int at = 0; at < bytes; at++) value |= (uint64_t)from[at] << 8 * at;
    return value;
}

static uint32_t nm_crc32c(uint32_t crc, const uint8_t *bytes, size_t size) {
    for (size_t at = 0; at < size; at++) {
        crc ^= bytes[at];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78U : 0);
    }
    return crc;
}

static int64_t nm_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t nm_now_ms(void) { return nm_clock_ns(CLOCK_MONOTONIC) / 1000000; }

/* The link is over: the next gateway is tried. */
static void nm_lose_link(nm_client *c) {
    if (c->socket >= 0) close(c->socket);
    c->socket = -1;
    c->gateway = (c->gateway + 1) % c->gateway_count;
    c->size = 0;
    c->is_logged_on = 0;
}

static void nm_send(nm_client *c, int kind, const uint8_t *message, uint32_t size) {
    uint8_t frame[256];
    uint32_t sent = 0;
    if (c->socket < 0) return;
    nm_put(frame, 16 + size, 4);
    frame[4] = NM_VERSION;
    frame[5] = (uint8_t)kind;
    nm_put(frame + 6, 0, 2);
    nm_put(frame + 8, size, 4);
    nm_put(frame + 12, ~nm_crc32c(nm_crc32c(~0U, frame, 12), message, size), 4);
    memcpy(frame + 16, message, size);
    while (sent < 16 + size) {
        ssize_t done = send(c->socket, frame + sent, 16 + size - sent, MSG_NOSIGNAL);
        if (done <= 0) { nm_lose_link(c); return; }
        sent += (uint32_t)done;
    }
}

static void nm_push(nm_client *c, nm_event event) {
    if (c->behind - c->first < NM_EVENTS_MAX) c->events[c->behind++ % NM_EVENTS_MAX] = event;
}

static nm_event nm_happened(const nm_stream *s, int kind, uint64_t number) {
    nm_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.instrument = s->instrument;
    event.number = number;
    return event;
}

/* Asks for the events that are missing, and where the session stands. */
static void nm_ask(nm_client *c, nm_stream *s) {
    uint8_t message[20] = {0};
    nm_put(message, s->instrument, 4);
    nm_put(message + 4, c->session, 4);
    nm_put(message + 8, s->seen, 8);
    s->asked_ms = nm_now_ms();
    nm_send(c, 15, message, sizeof message);
}

static void nm_send_waiting(nm_client *c, nm_stream *s) {
    while (c->socket >= 0 && s->is_known && s->sent < s->count) {
        const nm_request *next = &s->pending[s->sent];
        uint8_t message[59 + 66] = {0};
        nm_put(message, s->instrument, 4);
        nm_put(message + 4, c->session, 4);
        nm_put(message + 8, next->seq, 8);
        nm_put(message + 16, next->previous, 8);
        nm_put(message + 24, s->handled, 8);
        message[57] = s->sent == 0; /* what was before it is answered */
        memcpy(message + 59, next->command, next->size);
        s->sent++;
        nm_send(c, 2, message, 59 + next->size);
    }
}

static nm_stream *nm_stream_of(nm_client *c, uint32_t instrument) {
    for (int at = 0; at < c->streams_count; at++)
        if (c->streams[at].instrument == instrument) return &c->streams[at];
    return NULL;
}

/* Sends any command of the wire; its number, which is the id of a new order. 0 if it is not sent,
 * because too many have no answer or too many instruments are used. */
static uint64_t nm_command(nm_client *c, uint32_t instrument, uint8_t *command, uint32_t size) {
    nm_stream *s = nm_stream_of(c, instrument);
    uint64_t seq = (uint64_t)nm_clock_ns(CLOCK_REALTIME);
    if (!s && c->streams_count < NM_INSTRUMENTS_MAX) {
        s = &c->streams[c->streams_count++];
        memset(s, 0, sizeof *s);
        s->instrument = instrument;
        nm_ask(c, s);
    }
    if (!s || s->count == NM_PENDING_MAX) {
        snprintf(c->error, sizeof c->error, s ? "%d requests have no answer" : "%d instruments are used",
                 s ? NM_PENDING_MAX : NM_INSTRUMENTS_MAX);
        return 0;
    }
    if (seq <= c->last_seq) seq = c->last_seq + 1;
    c->last_seq = seq;
    if (command[0] == 0) nm_put(command + 1, seq, 8);
    nm_request *request = &s->pending[s->count++];
    request->seq = seq;
    request->previous = s->last;
    request->size = size;
    memcpy(request->command, command, size);
    s->last = seq;
    nm_send_waiting(c, s);
    return seq;
}

static uint64_t nm_new_pegged(nm_client *c, uint32_t on, int buys, int64_t price, uint64_t lots,
                              int order_type, int time_in_force, int is_hidden, int peg,
                              uint16_t offset) {
    uint8_t command[70] = {0};
    nm_put(command + 9, (uint64_t)price, 8);
    nm_put(command + 25, lots, 8);
    nm_put(command + 57, c->session, 4);
    command[61] = !buys;
    command[62] = (uint8_t)order_type;    /* as docs/wire.md has it */
    command[63] = (uint8_t)time_in_force; /* as docs/wire.md has it */
    command[65] = 1; /* it does not trade with the session's own orders */
    command[66] = is_hidden != 0;
    command[67] = (uint8_t)peg;           /* as docs/wire.md has it */
    nm_put(command + 68, offset, 2);
    return nm_command(c, on, command, sizeof command);
}

static uint64_t nm_new(nm_client *c, uint32_t on, int buys, int64_t price, uint64_t lots,
                       int order_type, int time_in_force, int is_hidden) {
    return nm_new_pegged(c, on, buys, price, lots, order_type, time_in_force, is_hidden, 0, 0);
}

/* Sends a limit order that rests until it is filled or cancelled: its id. Price in ticks. */
static inline uint64_t nm_order(nm_client *c, uint32_t on, int buys, int64_t price, uint64_t lots) {
    return nm_new(c, on, buys, price, lots, 0, 1, 0);
}

/* As nm_order, but the order is never shown: at its price it trades after all that is displayed. */
static inline uint64_t nm_hidden_order(nm_client *c, uint32_t on, int buys, int64_t price,
                                       uint64_t lots) {
    return nm_new(c, on, buys, price, lots, 0, 1, 1);
}

/* Its price follows the best displayed price of its side, so many ticks away from the market. It
   goes no further than its limit, if that is not NULL, and nobody sees it. */
static inline uint64_t nm_primary_peg(nm_client *c, uint32_t on, int buys, uint16_t offset,
                                      const int64_t *limit, uint64_t lots) {
    return nm_new_pegged(c, on, buys, limit ? *limit : 0, lots, !limit, 1, 0, 1, offset);
}

/* As nm_primary_peg, but it follows the middle between the best displayed prices. */
static inline uint64_t nm_mid_peg(nm_client *c, uint32_t on, int buys, const int64_t *limit,
                                  uint64_t lots) {
    return nm_new_pegged(c, on, buys, limit ? *limit : 0, lots, !limit, 1, 0, 2, 0);
}

/* For the closing auction alone: nobody sees it, and what is left is cancelled with the auction. */
static inline uint64_t nm_limit_on_close(nm_client *c, uint32_t on, int buys, int64_t price,
                                         uint64_t lots) {
    return nm_new(c, on, buys, price, lots, 0, 5, 0);
}

/* As nm_limit_on_close, without a limit. */
static inline uint64_t nm_market_on_close(nm_client *c, uint32_t on, int buys, uint64_t lots) {
    return nm_new(c, on, buys, 0, lots, 1, 5, 0);
}

/* Cancels an order: the number of the request. */
static inline uint64_t nm_cancel(nm_client *c, uint32_t on, uint64_t id) {
    uint8_t command[17] = {2};
    nm_put(command + 1, id, 8);
    nm_put(command + 9, c->session, 8);
    return nm_command(c, on, command, sizeof command);
}

/* Changes the price and the open quantity of an order: the number of the request. */
static inline uint64_t nm_replace(nm_client *c, uint32_t on, uint64_t id, int64_t price, uint64_t lots) {
    uint8_t command[33] = {1};
    nm_put(command + 1, id, 8);
    nm_put(command + 9, c->session, 8);
    nm_put(command + 17, (uint64_t)price, 8);
    nm_put(command + 25, lots, 8);
    return nm_command(c, on, command, sizeof command);
}

/* Cancels all orders on an instrument: the number of the request. */
static inline uint64_t nm_cancel_all(nm_client *c, uint32_t on) {
    uint8_t command[9] = {3};
    nm_put(command + 1, c->session, 8);
    return nm_command(c, on, command, sizeof command);
}

/* Takes the request with a number out of those without an answer; whether it was one. */
static int nm_take(nm_stream *s, uint64_t seq, uint64_t *previous) {
    for (int at = 0; at < s->count; at++) {
        if (s->pending[at].seq != seq) continue;
        *previous = s->pending[at].previous;
        s->sent -= at < s->sent;
        s->count--;
        memmove(&s->pending[at], &s->pending[at + 1], sizeof(nm_request) * (size_t)(s->count - at));
        return 1;
    }
    return 0;
}

static int nm_event_bytes(int code) {
    static const int bytes[] = {16, 33, 56, 25, 33, 24, 24, 16, 24, 16, 0, 0, 0, 17};
    return code <= NM_UNCROSSED ? bytes[code] : -1;
}

static uint64_t nm_count_events(const uint8_t *at, const uint8_t *end) {
    uint64_t count = 0;
    while (at < end && nm_event_bytes(*at) >= 0) at += 1 + nm_event_bytes(*at), count++;
    return count;
}

static void nm_take_event(nm_client *c, nm_stream *s, uint64_t number, const uint8_t *from) {
    nm_event event = nm_happened(s, from[0], number);
    const uint8_t *at = from + 1;
    event.id = nm_event_bytes(from[0]) >= 16 ? nm_get(at, 8) : 0;
    switch (from[0]) {
    case NM_REJECTED:
        event.reason = at[16];
        event.most = nm_get(at + 17, 8);
        event.asked = nm_get(at + 25, 8);
        break;
    case NM_TRADED: {
        int is_taker = nm_get(at + 16, 4) == c->session;
        event.id = nm_get(is_taker ? at + 8 : at, 8);
        event.price = (int64_t)nm_get(at + 24, 8);
        event.quantity = nm_get(at + 32, 8);
        event.left = nm_get(is_taker ? at + 48 : at + 40, 8);
        break;
    }
    case NM_CANCELLED: event.left = nm_get(at + 16, 8); event.reason = at[24]; break;
    case NM_REPLACED: event.price = (int64_t)nm_get(at + 16, 8); event.left = nm_get(at + 24, 8); break;
    case NM_REDUCED: event.left = nm_get(at + 16, 8); break;
    case NM_SLID: event.price = (int64_t)nm_get(at + 16, 8); break;
    default: break;
    }
    nm_push(c, event);
}

/* Takes the events that are new, unless earlier ones are missing. */
static void nm_take_events(nm_client *c, nm_stream *s, uint64_t number, const uint8_t *at, const uint8_t *end) {
    if (!s->is_known) return;
    if (number > s->seen) {
        if (!s->asked_ms) nm_ask(c, s);
        return;
    }
    for (; at < end && nm_event_bytes(*at) >= 0; at += 1 + nm_event_bytes(*at)) {
        if (++number <= s->seen) continue;
        if (c->behind - c->first == NM_EVENTS_MAX) return; /* they are asked for when there is room */
        s->seen = number;
        nm_take_event(c, s, number, at);
    }
}

static int nm_take_resent(nm_client *c, nm_stream *s, const uint8_t *message, const uint8_t *end) {
    uint64_t previous = nm_get(message + 8, 8), executed = nm_get(message + 16, 8), of = 0;
    s->asked_ms = 0;
    if (!s->is_known) {
        s->is_known = 1;
        if (executed > 0) {
            nm_event used = nm_happened(s, NM_USED_BEFORE, executed);
            used.left = nm_get(message + 24, 4);
            nm_push(c, used);
            s->answered = executed;
            s->seen = s->handled = previous + nm_count_events(message + 33, end);
            if (s->count) s->pending[0].previous = executed;
            if (s->count && s->pending[0].seq <= executed) {
                snprintf(c->error, sizeof c->error, "the clock is behind the session's last request");
                return -1;
            }
        }
    } else if (executed > s->answered) {
        for (int at = 0; at < s->count; at++) of |= s->pending[at].seq == executed;
        if (!of) {
            snprintf(c->error, sizeof c->error, "another client uses session %u", (unsigned)c->session);
            return -1;
        }
    }
    if (message[32] && previous > s->seen) {
        s->seen = previous;
        nm_push(c, nm_happened(s, NM_EVENTS_LOST, previous));
    }
    nm_take_events(c, s, previous, message + 33, end);
    nm_send_waiting(c, s);
    return 0;
}

static void nm_take_refused(nm_client *c, nm_stream *s, uint64_t seq, int reason) {
    uint64_t previous;
    if (!nm_take(s, seq, &previous)) return;
    if (s->last == seq) s->last = previous;
    for (int at = 0; at < s->count; at++)
        if (s->pending[at].previous == seq) s->pending[at].previous = previous;
    nm_event refused = nm_happened(s, NM_REFUSED, seq);
    refused.reason = reason;
    nm_push(c, refused);
}

/* Handles a message; -1 if the client cannot go on. */
static int nm_receive(nm_client *c, int kind, const uint8_t *message, uint32_t size) {
    const uint8_t *end = message + size;
    uint64_t seq, previous;
    nm_stream *s;
    if (kind == 23) { nm_lose_link(c); return 0; } /* the gateway leaves */
    if (kind == 16 && size >= 2) {
        if (size >= 14 && memcmp(message + 2, "no heartbeat", 12) == 0) { nm_lose_link(c); return 0; }
        snprintf(c->error, sizeof c->error, "%s refuses: %.*s", c->gateways[c->gateway], (int)size - 2,
                 (const char *)message + 2);
        nm_lose_link(c);
        return -1;
    }
    if (kind == 41) c->is_logged_on = 1;
    if (kind == 29) for (int at = 0; at < c->streams_count; at++) nm_ask(c, &c->streams[at]);
    if ((kind != 3 && kind != 4 && kind != 25 && kind != 26) || size < 29) return 0;
    s = nm_stream_of(c, (uint32_t)nm_get(message, 4));
    if (!s || nm_get(message + 4, 4) != c->session) return 0;
    seq = nm_get(message + 8, 8);
    if (kind == 3 && size >= 58) {
        nm_take_events(c, s, nm_get(message + 24, 8), message + 58, end);
        if (nm_take(s, seq, &previous) && seq > s->answered) s->answered = seq;
        nm_send_waiting(c, s);
    }
    if (kind == 4) nm_take_events(c, s, nm_get(message + 16, 8), message + 29, end);
    if (kind == 25 && size >= 37) nm_take_refused(c, s, seq, message[36]);
    return kind == 26 && size >= 33 ? nm_take_resent(c, s, message, end) : 0;
}

static int nm_open_socket(const char *gateway) {
    struct sockaddr_un path;
    struct addrinfo hints, *found = NULL;
    char host[256];
    const char *colon = strrchr(gateway, ':');
    struct timeval patience = {1, 0};
    int one = 1, link = -1;
    if (strncmp(gateway, "unix:", 5) == 0) {
        memset(&path, 0, sizeof path);
        path.sun_family = AF_UNIX;
        strncpy(path.sun_path, gateway + 5, sizeof path.sun_path - 1);
        link = socket(AF_UNIX, SOCK_STREAM, 0);
        if (link >= 0 && connect(link, (struct sockaddr *)&path, sizeof path) != 0) close(link), link = -1;
        return link;
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - gateway) : 0, gateway);
    if (!colon || getaddrinfo(host, colon + 1, &hints, &found) != 0) return -1;
    link = socket(found->ai_family, SOCK_STREAM, 0);
    /* It bounds a connect, too. */
    setsockopt(link, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (link >= 0 && connect(link, found->ai_addr, found->ai_addrlen) != 0) close(link), link = -1;
    setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(found);
    return link;
}

static void nm_connect(nm_client *c) {
    uint8_t hello[23] = {0}, logon[12];
    struct timespec pause = {0, 50000000};
    c->socket = nm_open_socket(c->gateways[c->gateway]);
    if (c->socket < 0) {
        nm_lose_link(c);
        nanosleep(&pause, NULL);
        return;
    }
    c->links++;
    c->contact_ms = c->beat_ms = nm_now_ms();
    nm_put(hello, NM_DIGEST, 8);
    nm_put(hello + 17, c->session, 4);
    nm_send(c, 1, hello, sizeof hello);
    nm_put(logon, c->session, 4);
    nm_put(logon + 4, c->heartbeat_ms, 4);
    nm_put(logon + 8, c->cancel_after_s, 4);
    if (c->heartbeat_ms || c->cancel_after_s) nm_send(c, 40, logon, sizeof logon);
    for (int at = 0; at < c->streams_count && c->socket >= 0; at++) {
        c->streams[at].sent = 0;
        nm_send_waiting(c, &c->streams[at]);
        nm_ask(c, &c->streams[at]);
    }
}

/* Reads what comes within a time and handles it; -1 if the client cannot go on. */
static int nm_work(nm_client *c, int limit_ms) {
    struct pollfd ready = {c->socket, POLLIN, 0};
    int64_t now_ms = nm_now_ms();
    uint8_t beat[8];
    if (c->is_logged_on && c->heartbeat_ms && now_ms - c->beat_ms >= c->heartbeat_ms) {
        c->beat_ms = now_ms;
        nm_put(beat, ++c->beats, 8);
        nm_send(c, 42, beat, sizeof beat);
    }
    for (int at = 0; at < c->streams_count; at++)
        if (c->streams[at].asked_ms && now_ms - c->streams[at].asked_ms >= 1000) nm_ask(c, &c->streams[at]);
    if (c->socket < 0) return 0;
    if (poll(&ready, 1, limit_ms) > 0) {
        ssize_t got = recv(c->socket, c->input + c->size, sizeof c->input - c->size, 0);
        if (got <= 0) { nm_lose_link(c); return 0; }
        c->size += (size_t)got;
        c->contact_ms = nm_now_ms();
    } else if (c->heartbeat_ms && nm_now_ms() - c->contact_ms > 3 * (int64_t)c->heartbeat_ms) {
        nm_lose_link(c);
        return 0;
    }
    size_t at = 0;
    while (c->size - at >= 16) {
        const uint8_t *frame = c->input + at;
        uint32_t length = (uint32_t)nm_get(frame, 4), bytes = (uint32_t)nm_get(frame + 8, 4);
        if (frame[4] != NM_VERSION || length > NM_FRAME_MAX || length < 16 || bytes > length - 16) {
            snprintf(c->error, sizeof c->error, "%s has version %d of the format, and this client %d",
                     c->gateways[c->gateway], frame[4], NM_VERSION);
            return -1;
        }
        if (c->size - at < length) break;
        if ((uint32_t)nm_get(frame + 12, 4) != (uint32_t)~nm_crc32c(nm_crc32c(~0U, frame, 12), frame + 16, bytes)) {
            nm_lose_link(c);
            return 0;
        }
        at += length;
        if (nm_receive(c, frame[5], frame + 16, bytes) != 0) return -1;
        if (c->socket < 0) return 0;
    }
    memmove(c->input, c->input + at, c->size - at);
    c->size -= at;
    return 0;
}

/* Begins a client; it connects when it is used. Gateways are HOST:PORT or unix:PATH. Both ends send
 * heartbeats each `heartbeat_ms` (500 to 60000; 0 for never). The exchange cancels the live orders
 * after `cancel_after_s` without a link (2 to 3600; 0 for never). */
static inline void nm_begin(nm_client *c, const char *const *gateways, int count, uint32_t session,
                            uint32_t heartbeat_ms, uint32_t cancel_after_s) {
    memset(c, 0, sizeof *c);
    c->gateways = gateways;
    c->gateway_count = count;
    c->socket = -1;
    c->session = session;
    c->heartbeat_ms = heartbeat_ms;
    c->cancel_after_s = cancel_after_s;
}

/* What happens next: 1 if it is in `event`, 0 if nothing does within a time, -1 if the client cannot
 * go on (`error` says why). Call it often: it does the work. */
static inline int nm_next(nm_client *c, nm_event *event, int limit_ms) {
    int64_t until_ms = nm_now_ms() + limit_ms;
    for (;;) {
        nm_stream *s = nm_stream_of(c, c->given.instrument);
        if (s && c->given.kind < NM_REFUSED && c->given.number > s->handled) s->handled = c->given.number;
        c->given.number = 0;
        if (c->first != c->behind) {
            *event = c->given = c->events[c->first++ % NM_EVENTS_MAX];
            return 1;
        }
        int64_t left_ms = until_ms - nm_now_ms();
        if (left_ms <= 0) return 0;
        if (c->socket < 0) nm_connect(c);
        if (nm_work(c, left_ms < 100 ? (int)left_ms : 100) != 0) return -1;
    }
}

/* Ends the link. */
static inline void nm_end(nm_client *c) {
    if (c->socket >= 0) close(c->socket);
    c->socket = -1;
}

#endif
