// The line buffer of a unit that looks at windows of an image. Words come in raster order, LANES channels each; beats
// go out in the order in which a folded array uses them:
//   for each output row, output column, group, fold, step over the taps, word of the group:  TAPS words of LANES.
// The ring of ROWS rows goes on into the next image, so that there is no pause between two. It is kept TAPS times, so
// that words of TAPS taps can be read at once. Rows are handed over whole.
module window #(
    parameter int LANES = 1,
    parameter int W = 8,
    parameter int WORDS = 1,      // of a pixel
    parameter int HEIGHT = 1,
    parameter int WIDTH = 1,
    parameter int KERNEL_Y = 1,
    parameter int KERNEL_X = 1,
    parameter int STRIDE_Y = 1,
    parameter int STRIDE_X = 1,
    parameter int DILATION_Y = 1,
    parameter int DILATION_X = 1,
    parameter int TOP = 0,        // padding above
    parameter int LEFT = 0,       // and on the left
    parameter int OUT_Y = 1,
    parameter int OUT_X = 1,
    parameter int GROUPS = 1,
    parameter int FOLDS = 1,      // how often a group's words of a window are read
    parameter int TAPS = 1,       // divides KERNEL_X, or is whole rows of the kernel that divide it
`ifdef UPDATABLE
    parameter int IMAGES = 1,     // of a sample
`else
    parameter int PAD = 0,
`endif
    parameter int ROWS = 3
) (
    input  logic                    clk,
    input  logic                    rst,
`ifdef UPDATABLE
    input  logic [2*W-1:0]          pads,      // of both banks
    input  logic [16:0]             change,
    output logic                    bank,      // of the beat to come
    output logic                    ahead_bank,
    output logic                    out_bank,
`endif
    input  logic [LANES*W-1:0]      in_data,
    input  logic                    in_valid,
    output logic                    in_ready,
    input  logic                    room,      // a sum may be begun or continued
    output logic                    take,      // the last beat of a sum is on its way
    output logic                    ahead,     // two cycles before out_valid
    output logic [TAPS*LANES*W-1:0] out_data,
    output logic                    out_valid,
    output logic                    out_first, // of a sum
    output logic                    out_last
);
    localparam int GROUP_WORDS = WORDS / GROUPS;
    localparam int ROW_WORDS = WIDTH * WORDS;
    localparam int RING = ROWS * ROW_WORDS;
    localparam int SPAN_Y = (KERNEL_Y - 1) * DILATION_Y + 1;
    localparam int STEP_X = (TAPS < KERNEL_X) ? TAPS : KERNEL_X;   // taps of a step along a row, and rows of it
    localparam int STEP_Y = (TAPS < KERNEL_X) ? 1 : TAPS / KERNEL_X;
    localparam int STEPS_X = KERNEL_X / STEP_X;
    localparam int STEPS_Y = KERNEL_Y / STEP_Y;
    localparam int LAST_Y = (OUT_Y - 1) * STRIDE_Y - TOP;          // first row of the last windows
    // A row of windows waits for the rows that are given back after it as well.
    localparam int REACH = ((SPAN_Y > STRIDE_Y) ? SPAN_Y : STRIDE_Y) - TOP;
    localparam int FIRST_NEED = (OUT_Y == 1 || REACH > HEIGHT) ? HEIGHT : REACH;
    localparam int LAST_FREED = HEIGHT - ((LAST_Y > 0) ? LAST_Y : 0);

    localparam int AW = (RING > 1) ? $clog2(RING) : 1;
    localparam int PW = (ROW_WORDS > 1) ? $clog2(ROW_WORDS) : 1;
    localparam int NW = $clog2(HEIGHT + ROWS + 1);                 // numbers of rows
    localparam int QW = $clog2(HEIGHT + ROWS + STRIDE_Y + 1);
    localparam int YW = $clog2(OUT_Y * STRIDE_Y + SPAN_Y + TOP + HEIGHT + 1) + 1;
    localparam int XW = $clog2((OUT_X * STRIDE_X + KERNEL_X * DILATION_X + LEFT + WIDTH + 1) * WORDS) + 1;

    // ---- writing

    logic [AW-1:0] write_at;
    logic [PW-1:0] write_word;
    logic [NW-1:0] used, filled, freed;   // rows in the ring; whole rows from the current image on; rows to give back
    logic write, row_written;

    assign in_ready = used != NW'(ROWS);
    assign write = in_valid && in_ready;
    assign row_written = write && write_word == PW'(ROW_WORDS - 1);

    always_ff @(posedge clk) begin
        if (rst) begin
            write_at <= '0;
            write_word <= '0;
        end else if (write) begin
            write_at <= (write_at == AW'(RING - 1)) ? '0 : write_at + 1'b1;
            write_word <= row_written ? '0 : write_word + 1'b1;
        end
    end

    // ---- which beat is next: counters, innermost first

    logic issue, word_end, x_end, y_end, fold_end, group_end, column_end, row_end;
    logic sum_first, sum_end, window_end, line_end, image_end;

    assign issue = room && filled >= need;
    assign sum_end = word_end && x_end && y_end;
    assign window_end = sum_end && fold_end && group_end;
    assign line_end = window_end && column_end;
    assign image_end = line_end && row_end;
    assign take = issue && sum_end;

    counter #(.COUNT(GROUP_WORDS)) words (.clk, .rst, .step(issue), .last(word_end));
    counter #(.COUNT(STEPS_X)) steps_x (.clk, .rst, .step(issue && word_end), .last(x_end));
    counter #(.COUNT(STEPS_Y)) steps_y (.clk, .rst, .step(issue && word_end && x_end), .last(y_end));
    counter #(.COUNT(FOLDS)) folds (.clk, .rst, .step(issue && sum_end), .last(fold_end));
    counter #(.COUNT(GROUPS)) groups (.clk, .rst, .step(issue && sum_end && fold_end), .last(group_end));
    counter #(.COUNT(OUT_X)) columns (.clk, .rst, .step(issue && window_end), .last(column_end));
    counter #(.COUNT(OUT_Y)) rows (.clk, .rst, .step(issue && line_end), .last(row_end));

    always_ff @(posedge clk) begin
        if (rst) sum_first <= 1'b1;
        else if (issue) sum_first <= sum_end;
    end

    // ---- where its words lie, by addition alone

    logic [AW-1:0] ring_row, tap_row;           // address of the first row of the window, and of the step's
    logic signed [YW-1:0] row_y, tap_y;         // their numbers in the image; negative in the padding
    logic signed [XW-1:0] column, tap_column;   // first word of the window's and of the step's column
    logic [PW-1:0] group_word, word;
    logic [NW-1:0] need;                        // rows of the image that the current output row looks at
    logic [AW-1:0] next_ring;
    logic signed [YW-1:0] next_y;

    function automatic logic [AW-1:0] wrapped(input logic [AW-1:0] address, input logic [AW:0] add);
        logic [AW:0] sum;
        sum = {1'b0, address} + add;
        wrapped = (sum >= (AW+1)'(RING)) ? AW'(sum - (AW+1)'(RING)) : sum[AW-1:0];
    endfunction

    localparam int TO_NEXT_IMAGE = ((HEIGHT - (OUT_Y - 1) * STRIDE_Y) % ROWS + ROWS) % ROWS * ROW_WORDS;
    localparam int START = ((ROWS - TOP % ROWS) % ROWS) * ROW_WORDS;
    assign next_ring = wrapped(
        ring_row, row_end ? (AW+1)'(TO_NEXT_IMAGE) : (AW+1)'(STRIDE_Y % ROWS * ROW_WORDS)
    );
    assign next_y = row_end ? YW'(-TOP) : row_y + YW'(STRIDE_Y);

    always_ff @(posedge clk) begin
        if (rst) begin
            ring_row <= AW'(START);
            tap_row <= AW'(START);
            row_y <= YW'(-TOP);
            tap_y <= YW'(-TOP);
            column <= XW'(-LEFT * WORDS);
            tap_column <= XW'(-LEFT * WORDS);
            group_word <= '0;
            word <= '0;
            need <= NW'(FIRST_NEED);
        end else if (issue) begin
            if (!word_end) begin
                word <= word + 1'b1;
            end else begin
                word <= (sum_end && fold_end) ? (group_end ? '0 : group_word + PW'(GROUP_WORDS)) : group_word;
                if (sum_end && fold_end) group_word <= group_end ? '0 : group_word + PW'(GROUP_WORDS);
                if (!x_end) begin
                    tap_column <= tap_column + XW'(STEP_X * DILATION_X * WORDS);
                end else begin
                    tap_column <= column;
                    if (!y_end) begin
                        tap_row <= wrapped(tap_row, (AW+1)'(STEP_Y * DILATION_Y % ROWS * ROW_WORDS));
                        tap_y <= tap_y + YW'(STEP_Y * DILATION_Y);
                    end else begin
                        tap_row <= line_end ? next_ring : ring_row;
                        tap_y <= line_end ? next_y : row_y;
                    end
                end
            end
            if (window_end) begin
                column <= column_end ? XW'(-LEFT * WORDS) : column + XW'(STRIDE_X * WORDS);
                tap_column <= column_end ? XW'(-LEFT * WORDS) : column + XW'(STRIDE_X * WORDS);
            end
            if (line_end) begin
                ring_row <= next_ring;
                row_y <= next_y;
                if (row_end) need <= NW'(FIRST_NEED);
                else if (next_y == YW'(LAST_Y) || QW'(need) + QW'(STRIDE_Y) >= QW'(HEIGHT)) need <= NW'(HEIGHT);
                else need <= need + NW'(STRIDE_Y);
            end
        end
    end

    // ---- rows given back: three cycles later, when the last reads of them are done

    logic [2:0][NW-1:0] giving;
    always_comb begin
        giving[0] = '0;
        if (issue && line_end) begin
            if (row_end) giving[0] = NW'(LAST_FREED);
            else if (row_y >= 0) giving[0] = NW'(STRIDE_Y);
            else if (next_y > 0) giving[0] = NW'(next_y);
        end
    end
    always_ff @(posedge clk) begin
        giving[1] <= rst ? '0 : giving[0];
        giving[2] <= rst ? '0 : giving[1];
        freed <= rst ? '0 : giving[2];
    end
    always_ff @(posedge clk) begin
        if (rst) begin
            used <= '0;
            filled <= '0;
        end else begin
            used <= used + NW'(row_written) - freed;
            filled <= filled + NW'(row_written) - ((issue && image_end) ? NW'(HEIGHT) : '0);
        end
    end

    // ---- the reads: address, memory, its output register

    logic [3:0] valid, first, last;
    always_ff @(posedge clk) begin
        valid <= rst ? '0 : {valid[2:0], issue};
        first <= {first[2:0], sum_first};
        last <= {last[2:0], sum_end};
    end
    assign ahead = valid[1];
    assign out_valid = valid[3];
    assign out_first = first[3];
    assign out_last = last[3];

`ifdef UPDATABLE
    // Each beat has the bank of its sample with it, to wherever a memory is read for it.
    logic [3:0] banks;
    logic [W-1:0] pad;
    bank_switch #(.COUNT(IMAGES)) versions (.clk, .rst, .step(issue && image_end), .change, .bank);
    always_ff @(posedge clk) banks <= {banks[2:0], bank};
    assign ahead_bank = banks[1];
    assign pad = banks[2] ? pads[2*W-1:W] : pads[W-1:0];
    assign out_bank = banks[3];
`endif

    logic [PW-1:0] word_late;
    always_ff @(posedge clk) word_late <= word;

    generate
        for (genvar j = 0; j < TAPS; j++) begin : tap
            localparam int BY = j / KERNEL_X * DILATION_Y;
            localparam int BX = j % KERNEL_X * DILATION_X * WORDS;
            (* no_rw_check *) logic [LANES*W-1:0] ring [RING];
            logic [AW-1:0] row, address;
            logic signed [YW-1:0] y;
            logic signed [XW-1:0] x;
            logic [2:0] in_image;
            logic [LANES*W-1:0] found, data;

            assign y = tap_y + YW'(BY);
            always_ff @(posedge clk) begin
                row <= wrapped(tap_row, (AW+1)'(BY % ROWS * ROW_WORDS));
                x <= tap_column + XW'(BX);
                in_image[0] <= y >= 0 && y < YW'(HEIGHT);
                address <= row + AW'(x) + AW'(word_late);
                in_image[1] <= in_image[0] && x >= 0 && x < XW'(ROW_WORDS);
                in_image[2] <= in_image[1];
            end
            always_ff @(posedge clk) begin
                if (write) ring[write_at] <= in_data;
                found <= ring[address];
            end
`ifdef UPDATABLE
            always_ff @(posedge clk) data <= in_image[2] ? found : {LANES{pad}};
`else
            always_ff @(posedge clk) data <= in_image[2] ? found : {LANES{W'(PAD)}};
`endif
            assign out_data[j*LANES*W +: LANES*W] = data;
        end
    endgenerate
endmodule
