// Rows of a table: for each index its row (COUNT is 1), or the requantised sum of the rows of COUNT indices, LANES
// numbers at a time. A window over the indices gives each of them again for each word of the rows.
module lookup_unit #(
    parameter int LANES = 1,
    parameter int IN_W = 8,           // of an index on its stream
    parameter int COUNT = 1,          // indices of a sum
    parameter int ROWS_OF_TABLE = 16,
    parameter int WORDS = 1,          // of a row
    parameter int SUMMED = 0,         // 0: the row as it is
    parameter int ENTRY_W = 8,
    parameter int ACC_W = 8,
    parameter int OUT_W = 8,
`ifdef UPDATABLE
    parameter int IMAGES = 1,         // sums of a sample
    parameter LAW = "",
`else
    parameter int SHIFT = 0,
    parameter int ZERO = 0,
    parameter int LOW = -128,
    parameter int HIGH = 127,
`endif
    parameter int MULTIPLIERS = 0,
`ifdef THRESHOLDS
    parameter int THRESHOLDS = 0,
    parameter int THRESHOLD_W = 24,
    parameter int THRESHOLD_SIGNED = 1,
    parameter int SUM_W = 24,
`endif
    parameter int ROWS = 3,
    parameter int DEPTH = 16,
    parameter ENTRIES = "",
    parameter FACTORS = ""
) (
    input  logic                   clk,
    input  logic                   rst,
`ifdef UPDATABLE
    input  logic [33:0]            update,
    output logic [33:0]            update_on,
    input  logic [16:0]            change,
    output logic                   bank,         // of the sample to come
`endif
    input  logic [IN_W-1:0]        in_data,
    input  logic                   in_valid,
    output logic                   in_ready,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid,
    input  logic                   out_ready
);
    localparam int INDEX_W = (ROWS_OF_TABLE > 1) ? $clog2(ROWS_OF_TABLE) : 1;
    localparam int WORD_W = (WORDS > 1) ? $clog2(WORDS) : 1;

    logic room, take, ahead;
    logic [INDEX_W-1:0] index;
    logic index_valid, index_first, index_last;
    logic [LANES*ACC_W-1:0] acc;
    logic acc_valid;
    logic [LANES*OUT_W-1:0] result;
    logic result_valid;

`ifdef UPDATABLE
    localparam int ENTRIES_IN = (1 << WORD_W) * ROWS_OF_TABLE;
    logic [33:0] update_law;
    logic shadow, write, ahead_bank, index_bank;
    logic [INDEX_W+WORD_W-1:0] write_at;
    logic [LANES*ENTRY_W-1:0] written;
    logic [1:0] banks;
    assign shadow = !change[16];
    chain_tap #(.W(LANES*ENTRY_W), .DEPTH(ENTRIES_IN)) new_entries (
        .clk, .rst, .update, .update_on(update_law), .write, .write_at, .written
    );
    always_ff @(posedge clk) banks <= {banks[0], index_bank};
    logic unused_bank;
    assign unused_bank = &{1'b0, ahead_bank, banks};
`endif

    credits #(.DEPTH(DEPTH), .TAKE(1)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);

    window #(
        .LANES(1), .W(INDEX_W), .WORDS(1), .HEIGHT(1), .WIDTH(COUNT), .KERNEL_Y(1), .KERNEL_X(COUNT), .OUT_Y(1),
        .OUT_X(1), .GROUPS(1), .FOLDS(WORDS),
`ifdef UPDATABLE
        .IMAGES(IMAGES),
`else
        .PAD(0),
`endif
        .TAPS(1), .ROWS(ROWS)
    ) indices (
`ifdef UPDATABLE
        .pads('0), .change, .bank, .ahead_bank, .out_bank(index_bank),
`endif
        .clk, .rst, .in_data(in_data[INDEX_W-1:0]), .in_valid, .in_ready, .room, .take, .ahead, .out_data(index),
        .out_valid(index_valid), .out_first(index_first), .out_last(index_last)
    );
    logic unused;
    assign unused = &{1'b0, ahead, in_data};

    // A row begins at a power of two, so that its address needs no multiplication.
    logic [LANES*ENTRY_W-1:0] read, entry;
    logic [WORD_W-1:0] word;
    always_ff @(posedge clk) begin
        if (rst) word <= '0;
        else if (index_valid && index_last) word <= (word == WORD_W'(WORDS - 1)) ? '0 : word + 1'b1;
    end
`ifdef UPDATABLE
    bank_memory #(.W(LANES*ENTRY_W), .DEPTH(ENTRIES_IN), .FILE(ENTRIES)) entries (
        .clk, .write, .write_at, .written, .shadow, .bank(index_bank), .at({index, word}), .word(read)
    );
`else
    logic [LANES*ENTRY_W-1:0] entries [(1 << WORD_W) * ROWS_OF_TABLE];
    initial $readmemh(ENTRIES, entries);
    always_ff @(posedge clk) read <= entries[{index, word}];
`endif
    always_ff @(posedge clk) entry <= read;

    logic [1:0] valid, first, last;
    always_ff @(posedge clk) begin
        valid <= rst ? '0 : {valid[0], index_valid};
        first <= {first[0], index_first};
        last <= {last[0], index_last};
        acc_valid <= !rst && valid[1] && last[1];
    end

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [ENTRY_W-1:0] term;
            logic signed [ACC_W-1:0] total;
            assign term = entry[i*ENTRY_W +: ENTRY_W];
            always_ff @(posedge clk) if (valid[1]) total <= (first[1] ? '0 : total) + ACC_W'(term);
            assign acc[i*ACC_W +: ACC_W] = total;
        end

        if (SUMMED != 0) begin : by_law
`ifdef THRESHOLDS
            requantiser #(
                .THRESHOLDS(THRESHOLDS), .THRESHOLD_W(THRESHOLD_W), .THRESHOLD_SIGNED(THRESHOLD_SIGNED),
                .SUM_W(SUM_W),
`else
            requantise #(
`endif
                .LANES(LANES), .ACC_W(ACC_W), .OUT_W(OUT_W),
`ifdef UPDATABLE
                .LAW(LAW),
`else
                .SHIFT(SHIFT), .ZERO(ZERO), .LOW(LOW), .HIGH(HIGH),
`endif
                .MULTIPLIERS(MULTIPLIERS), .FILE(FACTORS)
            ) law (
`ifdef UPDATABLE
                .update(update_law), .update_on, .shadow, .next_bank(banks[1]),
`endif
                .clk, .rst, .in_data(acc), .in_valid(acc_valid), .out_data(result), .out_valid(result_valid)
            );
        end else begin : as_it_is
            for (genvar i = 0; i < LANES; i++) begin : kept
                assign result[i*OUT_W +: OUT_W] = acc[i*ACC_W +: OUT_W];
            end
            assign result_valid = acc_valid;
`ifdef UPDATABLE
            assign update_on = update_law;
`endif
        end
    endgenerate

    output_fifo #(.W(LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(result_valid), .out_data, .out_valid, .out_ready
    );
endmodule
