import exchange.core2.collections.objpool.ObjectsPool;
import exchange.core2.core.common.CoreSymbolSpecification;
import exchange.core2.core.common.MatcherEventType;
import exchange.core2.core.common.MatcherTradeEvent;
import exchange.core2.core.common.OrderAction;
import exchange.core2.core.common.OrderType;
import exchange.core2.core.common.SymbolType;
import exchange.core2.core.common.cmd.OrderCommand;
import exchange.core2.core.common.config.LoggingConfiguration;
import exchange.core2.core.orderbook.IOrderBook;
import exchange.core2.core.orderbook.OrderBookDirectImpl;
import exchange.core2.core.orderbook.OrderBookEventsHelper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;

/**
 * Plays a file of commands on exchange-core's fastest order book, as often as lines arrive on
 * standard input, and answers each line with: ns of the measured commands, their number, trades,
 * traded quantity.
 *
 * The file, little-endian: number of commands (int), how many of them are warm-up (int), and for
 * each command: kind (byte; 0 add, 1 take, 2 cancel, 3 move), side (byte; 0 buy, 1 sell), user
 * (int), order (int, numbered in the order of arrival), price (long), quantity (long).
 */
public final class BookPeer {
    private static final int WARM_UP_S = 8;

    private final byte[] kinds;
    private final OrderAction[] sides;
    private final long[] users;
    private final long[] orders;
    private final long[] prices;
    private final long[] quantities;
    private final int warm;
    private long trades;
    private long traded;

    private BookPeer(ByteBuffer file) {
        int count = file.getInt();
        warm = file.getInt();
        kinds = new byte[count];
        sides = new OrderAction[count];
        users = new long[count];
        orders = new long[count];
        prices = new long[count];
        quantities = new long[count];
        for (int at = 0; at < count; at++) {
            kinds[at] = file.get();
            sides[at] = file.get() == 0 ? OrderAction.BID : OrderAction.ASK;
            users[at] = file.getInt();
            orders[at] = file.getInt();
            prices[at] = file.getLong();
            quantities[at] = file.getLong();
        }
    }

    private void consume(OrderCommand command) {
        MatcherTradeEvent event = command.matcherEvent;
        while (event != null) {
            if (event.eventType == MatcherEventType.TRADE) {
                trades++;
                traded += event.size;
            }
            event = event.nextEvent;
        }
        command.matcherEvent = null;
    }

    private void play(IOrderBook book, OrderCommand command, int from, int to) {
        for (int at = from; at < to; at++) {
            command.orderId = orders[at];
            command.uid = users[at];
            command.price = prices[at];
            command.size = quantities[at];
            switch (kinds[at]) {
                case 0:
                case 1:
                    command.action = sides[at];
                    command.orderType = kinds[at] == 0 ? OrderType.GTC : OrderType.IOC;
                    command.reserveBidPrice = prices[at];
                    book.newOrder(command);
                    break;
                case 2:
                    book.cancelOrder(command);
                    break;
                default:
                    book.moveOrder(command);
                    break;
            }
            consume(command);
        }
    }

    /** ns of the commands behind the warm-up, on a new book. */
    private long run(ObjectsPool pool) {
        // Of this type, bids need no reserved price.
        CoreSymbolSpecification symbol = CoreSymbolSpecification.builder()
                .symbolId(1).type(SymbolType.FUTURES_CONTRACT).build();
        // This version makes a new object of each event, whatever it is given.
        OrderBookEventsHelper helper = OrderBookEventsHelper.NON_POOLED_EVENTS_HELPER;
        IOrderBook book =
                new OrderBookDirectImpl(symbol, pool, helper, LoggingConfiguration.DEFAULT);
        OrderCommand command = new OrderCommand();
        play(book, command, 0, warm);
        trades = 0;
        traded = 0;
        long start = System.nanoTime();
        play(book, command, warm, kinds.length);
        return System.nanoTime() - start;
    }

    private static ObjectsPool pool() {
        HashMap<Integer, Integer> sizes = new HashMap<>();
        sizes.put(ObjectsPool.DIRECT_ORDER, 1 << 20);
        sizes.put(ObjectsPool.DIRECT_BUCKET, 1 << 16);
        sizes.put(ObjectsPool.ART_NODE_4, 1 << 16);
        sizes.put(ObjectsPool.ART_NODE_16, 1 << 15);
        sizes.put(ObjectsPool.ART_NODE_48, 1 << 13);
        sizes.put(ObjectsPool.ART_NODE_256, 1 << 11);
        return new ObjectsPool(sizes);
    }

    public static void main(String[] args) throws Exception {
        ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(Path.of(args[0])));
        BookPeer peer = new BookPeer(file.order(ByteOrder.LITTLE_ENDIAN));
        ObjectsPool pool = pool();
        long until = System.nanoTime() + WARM_UP_S * 1_000_000_000L;
        while (System.nanoTime() < until) {
            peer.run(pool);
        }
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        while (lines.readLine() != null) {
            long ns = peer.run(pool);
            int count = peer.kinds.length - peer.warm;
            System.out.println(ns + " " + count + " " + peer.trades + " " + peer.traded);
        }
    }
}
