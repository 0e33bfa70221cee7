/* Makes a market: a bid and an ask around a price. After a fill it moves its price against its
 * position and quotes again. It ends after so many lots were filled.
 *
 * cc -std=c99 -o make_market make_market.c
 * usage: make_market SESSION INSTRUMENT FILLS GATEWAY... */
#include "nearmetal.h"

#include <stdlib.h>

enum { MIDDLE = 1000, LOTS = 5 };

/* A quote: an order that is open or on its way, or none if its id is 0. */
typedef struct { uint64_t id; int64_t price; } quote;

static nm_client client;
static quote quotes[2]; /* ask, bid */
static int64_t position, filled;

/* Quotes on each side that has no order, and cancels orders whose price is not the present one. */
static void requote(uint32_t instrument) {
    for (int buys = 0; buys < 2; buys++) {
        quote *own = &quotes[buys];
        int64_t price = MIDDLE - position / 10 + (buys ? -1 : 1);
        if (own->id == 0) {
            own->id = nm_order(&client, instrument, buys, price, LOTS);
            own->price = price;
        } else if (own->price != price) {
            nm_cancel(&client, instrument, own->id);
            own->price = price; /* it is cancelled once */
        }
    }
}

static void handle(const nm_event *event) {
    printf("event %llu kind %d id %llu quantity %llu left %llu\n", (unsigned long long)event->number,
           event->kind, (unsigned long long)event->id, (unsigned long long)event->quantity,
           (unsigned long long)event->left);
    fflush(stdout);
    if (event->kind == NM_USED_BEFORE) nm_cancel_all(&client, event->instrument);
    for (int buys = 0; buys < 2; buys++) {
        if (event->id != quotes[buys].id) continue;
        int is_gone = event->kind == NM_CANCELLED || event->kind == NM_REJECTED;
        if (event->kind == NM_TRADED) {
            position += buys ? (int64_t)event->quantity : -(int64_t)event->quantity;
            filled += (int64_t)event->quantity;
            is_gone = event->left == 0;
        }
        if (is_gone) quotes[buys].id = 0;
    }
}

int main(int count, char **words) {
    if (count < 5) {
        fprintf(stderr, "usage: make_market SESSION INSTRUMENT FILLS GATEWAY...\n");
        return 2;
    }
    uint32_t session = (uint32_t)atol(words[1]), instrument = (uint32_t)atol(words[2]);
    nm_event event;
    int found = 0, quiet = 0;
    /* Its orders are cancelled if it is away for 10 s. */
    nm_begin(&client, (const char *const *)words + 4, count - 4, session, 2000, 10);
    while (filled < atol(words[3]) && found >= 0) {
        found = nm_next(&client, &event, 200);
        if (found == 1) handle(&event);
        requote(instrument);
    }
    nm_cancel_all(&client, instrument);
    while (found >= 0 && !quiet) {
        found = nm_next(&client, &event, 1500);
        if (found == 1) handle(&event);
        quiet = found == 0;
    }
    if (found < 0) fprintf(stderr, "%s\n", client.error);
    printf("filled %lld links %d\n", (long long)filled, client.links);
    nm_end(&client);
    return found < 0;
}
